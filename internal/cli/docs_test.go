package cli

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/harness/cuda"
	"ration/check/testenv"
	"ration/internal/embedded"
	"ration/internal/policy"
)

// Pages for people show sessions. A block of the kind "sh session" is commands to copy, and a
// block "text output" below it is what they print. In a block of the kind console a line that
// begins with "$ " is a command, and the lines below it are what that prints: for commands that
// are to be seen and not copied. The tests here run each page from its top to its end as one
// session of bash, on a machine without a GPU, and compare: so everything that is shown as
// output was printed.

var updateDocs = flag.Bool("update-docs", false, "write what the commands of docs/*.md print into the pages")

// docPages returns the pages, by path.
func docPages(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../../docs/*.md")
	expect.Must(t, err == nil && len(paths) != 0, "no pages", err)
	pages := map[string]string{}
	for _, path := range append(paths, "../../README.md") {
		text, err := os.ReadFile(path)
		expect.OK(t, err)
		pages[path] = string(text)
	}
	return pages
}

// block is a block of a page that is not prose. kind is what follows its fence, or "indented".
type block struct {
	kind        string
	first, last int // lines of its content; last is the line after it
}

// blocks returns the blocks of a page.
func blocks(lines []string) (out []block) {
	for i := 0; i < len(lines); i++ {
		kind, fenced := strings.CutPrefix(lines[i], "```")
		begin := i
		switch {
		case fenced:
			for i++; i < len(lines) && !strings.HasPrefix(lines[i], "```"); i++ {
			}
			out = append(out, block{kind, begin + 1, i})
		case strings.HasPrefix(lines[i], "    ") && (i == 0 || lines[i-1] == ""):
			for ; i < len(lines) && (strings.HasPrefix(lines[i], "    ") || lines[i] == ""); i++ {
			}
			out = append(out, block{"indented", begin, i})
			i--
		}
	}
	return out
}

// elsewhere are the kinds of blocks that other tests look at: TestDemoIsDocumented, TestCommandsPage of
// cmd/ration-man, TestInstallScript of package deploy_test; those for Python the tests in the folder python. Diffs,
// YAML and units of systemd are another program's.
var elsewhere = []string{"text columns", "text demo", "text flags", "text install", "python", "ipython", "text python", "diff", "yaml", "ini"}

// shownLine matches a line of a code block that names no language: a command, or JSON fields.
var shownLine = regexp.MustCompile(`^(ration|make|sudo|apt|dnf|curl|srun|sacct|source|export|git|mkdir|mv|echo|unshare|systemctl|scontrol|minisign|docker|podman|pip|helm|kubectl|fake-train|exit|\./run|#|[A-Z_]+=|\{|[]}]|")|^$`)

// notations is the pages whose blocks are pictures and steps of protocols.
var notations = map[string]bool{"architecture.md": true, "format.md": true, "protocols.md": true, "benchmarks.md": true}

// parseConfig checks a policy, or [[notify]] sections without one.
func parseConfig(t *testing.T, path, text string) error {
	if !strings.HasPrefix(text, "[[notify]]") {
		_, err := policy.Parse(path, []byte(text))
		return err
	}
	file := filepath.Join(t.TempDir(), "config.toml")
	expect.OK(t, os.WriteFile(file, []byte(text), 0o600))
	_, _, err := policy.ReadNotify(file)
	return err
}

// Every block is of a kind that a test looks at.
func TestDocBlocks(t *testing.T) {
	for path, page := range docPages(t) {
		lines := strings.Split(page, "\n")
		all := blocks(lines)
		for i, b := range all {
			text := lines[b.first:b.last]
			switch {
			case b.kind == "console" || b.kind == "sh session" || slices.Contains(elsewhere, b.kind):
			case b.kind == "toml":
				expect.OK(t, parseConfig(t, path, strings.Join(text, "\n")), path, b.first)
			case b.kind == "text output":
				expect.True(t, follows(all, i), path, b.first, "output of no command: it belongs below a block of the kind sh session")
			case b.kind == "sh" || b.kind == "indented":
				for i, line := range text {
					expect.True(t, shownLine.MatchString(strings.TrimSpace(line)) || notations[filepath.Base(path)],
						path, b.first+i+1, line, "is no command; what commands print is in a block of the kind console, which a test runs")
					checkShown(t, fmt.Sprintf("%s:%d", path, b.first+i+1), line)
				}
			default:
				t.Errorf("%s:%d: no test produces a block of the kind %q (use sh for commands, console for a session)", path, b.first, b.kind)
			}
		}
	}
}

// follows reports whether block i is the output of the block before it.
func follows(all []block, i int) bool {
	return i > 0 && i < len(all) && all[i].kind == "text output" && all[i-1].kind == "sh session" && all[i].first == all[i-1].last+3
}

// shownCommand finds a ration command in a line of a page.
var shownCommand = regexp.MustCompile(`(?:^|[ (|])ration ([a-z]+(?: .*)?)$`)

// checkShown checks that a line that shows a ration command names one that there is, with
// flags that it has.
func checkShown(t *testing.T, where, line string) {
	line, _, _ = strings.Cut(line, "  #")
	m := shownCommand.FindStringSubmatch(strings.TrimSpace(line))
	if m == nil || strings.ContainsAny(m[1], "{…") {
		return
	}
	args := strings.Fields(strings.NewReplacer("'", "", `"`, "", ")", " ").Replace(m[1]))
	command := newRootCommand(&app{out: newTerminal(io.Discard), err: newTerminal(io.Discard)})
	found, rest, err := command.Find(args)
	if err == nil && found == command {
		err = fmt.Errorf("no such command")
	}
	if err == nil {
		for i, arg := range rest {
			if strings.HasPrefix(arg, "[") || strings.ContainsAny(arg, "|<>&") || arg == "--" {
				rest = rest[:i]
				break
			}
		}
		err = found.ParseFlags(rest)
	}
	expect.True(t, err == nil || strings.Contains(err.Error(), "help requested"), where, line, err)
}

// The messages that docs/troubleshooting.md explains are those that there are.
func TestMessagesAreReal(t *testing.T) {
	var sources strings.Builder
	for _, pattern := range []string{"../*/*.go", "../../shim/*.c", "../../shim/region/*.c"} {
		paths, err := filepath.Glob(pattern)
		expect.OK(t, err)
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text, err := os.ReadFile(path)
			expect.OK(t, err)
			sources.Write(text)
		}
	}
	_, table, _ := strings.Cut(docPages(t)["../../docs/troubleshooting.md"], "\n| message |")
	table, _, _ = strings.Cut(table, "\n\n")
	messages := regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(table, -1)
	expect.Must(t, len(messages) >= 5, "found only", messages)
	for _, m := range messages {
		for part := range strings.SplitSeq(regexp.MustCompile(`\d+ GiB`).ReplaceAllString(m[1], "\x00"), "\x00") {
			expect.True(t, strings.Contains(sources.String(), part), "no source says", part)
		}
	}
}

// number matches what differs between two runs of the demo.
var number = regexp.MustCompile(`[\d,.]*\d( (s|ms|µs|GiB|MiB|B)\b)?`)

// The README has what the demo prints, but for its numbers.
func TestDemoIsDocumented(t *testing.T) {
	testenv.Made(t, cuda.Built())
	lines := strings.Split(docPages(t)["../../README.md"], "\n")
	i := slices.IndexFunc(blocks(lines), func(b block) bool { return b.kind == "text demo" })
	expect.Must(t, i >= 0, "the README does not show the demo")
	b := blocks(lines)[i]
	out, err := exec.Command("ration", "demo", "--quick").Output()
	expect.OK(t, err)
	without := func(text string) string {
		text = number.ReplaceAllString(text, "N")
		text = regexp.MustCompile(`(?m)^ +N`).ReplaceAllString(text, " N")                              // one digit more after ten seconds
		return regexp.MustCompile(`most was held by .*`).ReplaceAllString(text, "most was held by ...") // which is by chance
	}
	got, want := without(string(out)), without(strings.Join(lines[b.first:b.last], "\n"))
	expect.True(t, strings.HasSuffix(strings.TrimSpace(got), strings.TrimSpace(want)), "it prints", got, "the README has", want)
}

// session is a bash that runs the commands of a page.
type session struct {
	in     io.Writer
	lines  chan string
	number int
}

func startSession(t *testing.T, environ []string, folder string) *session {
	t.Helper()
	reader, writer, err := os.Pipe()
	expect.OK(t, err)
	cmd := exec.Command("bash", "--norc", "--noprofile")
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = environ, folder, writer, writer
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	expect.OK(t, err)
	writer.Close()
	s := &session{in: in, lines: make(chan string, 4096)}
	go func() {
		defer close(s.lines)
		for r := bufio.NewScanner(reader); r.Scan(); {
			s.lines <- r.Text()
		}
	}()
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // with what the page left in the background
		_ = cmd.Wait()
		reader.Close()
	})
	return s
}

// held is the last line of fake-train --hold.
var held = regexp.MustCompile(`^holding `)

// run runs a command and returns what it printed. A command in the background is given time
// to print all that is wanted of it, or until it holds what it asked for.
func (s *session) run(command string, want int) (out []string, err error) {
	s.number++
	marker := fmt.Sprintf("--- end of command %d", s.number)
	if _, err := fmt.Fprintf(s.in, "%s\n__status=$?; echo '%s'; (exit $__status)\n", command, marker); err != nil {
		return nil, err
	}
	background, ended := strings.HasSuffix(command, "&"), false
	late := time.After(time.Minute)
	for {
		if ended && (!background || *updateDocs && len(out) > 0 && held.MatchString(out[len(out)-1]) || !*updateDocs && len(out) >= want) {
			return out, nil
		}
		select {
		case line, open := <-s.lines:
			switch {
			case !open:
				return out, errors.New("bash has ended")
			case line == marker:
				ended = true
			default:
				out = append(out, line)
			}
		case <-late:
			return out, errors.New("no end within a minute")
		}
	}
}

// masks are what differs between two runs of the same command.
var masks = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d+Z?)?`), "TIME"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d`), "DATE"},
	{regexp.MustCompile(`(pid \??|PID |\[|kill )\d+`), "${1}PID"},
	{regexp.MustCompile(`(fake-train|python3?|sh)( \(\??|-)\d+`), "$1$2 PID"},
	{regexp.MustCompile(`^\s*(\d+\s+)?\??\d+ `), "${1}PID "},
	{regexp.MustCompile(`"(pid|host_pid)": \d+`), `"$1": PID`},
	{regexp.MustCompile(`\b\d+(\.\d+)? ?(s|ms|µs)\b`), "N s"},
	{regexp.MustCompile(` \d+%\s+[\d.]+[KMG]\b`), " CPU RSS"},
	{regexp.MustCompile(`ration-[0-9a-f]{16}`), "ration-HASH"},
	{regexp.MustCompile(`\s+`), " "},
}

func masked(line string) string {
	for _, m := range masks {
		line = m.what.ReplaceAllString(line, m.by)
	}
	return strings.TrimSpace(line)
}

// TestDocSessions runs the sessions of all pages.
func TestDocSessions(t *testing.T) {
	testenv.Made(t, embedded.Ration.Built(), embedded.FakeGPU.Built(), embedded.Probe.Built())
	for path, page := range docPages(t) {
		lines := strings.Split(page, "\n")
		if strings.Contains(page, "```console") || strings.Contains(page, "```sh session") {
			t.Run(filepath.Base(path), func(t *testing.T) {
				for _, tool := range []string{"bash", "jq"} {
					if _, err := exec.LookPath(tool); err != nil && (tool == "bash" || strings.Contains(page, tool+" ")) {
						t.Skipf("the page uses %s, which is not installed", tool)
					}
				}
				if strings.Contains(page, " DRIFT ") { // which is by the PIDs of the host
					testenv.NeedsHost(t)
				}
				now := runPage(t, path, lines)
				if *updateDocs {
					expect.OK(t, os.WriteFile(path, []byte(strings.Join(now, "\n")), 0o644))
				}
			})
		}
	}
}

// The user of the pages, and the folder of her jobs.
const shownUser, shownFolder = "anna", "/tmp/ration-1000"

// runPage runs the commands of a page, compares, and returns the page with what was printed.
func runPage(t *testing.T, path string, lines []string) (now []string) {
	folder := t.TempDir()
	jobs := filepath.Join(folder, "jobs")
	me, err := user.Current()
	expect.OK(t, err)
	environ := append(pageEnviron(os.Environ()), "RATION_DIR="+jobs, "FAKEGPU_QUIET=1", "LC_ALL=C.UTF-8", "HOME="+folder)
	if strings.Contains(strings.Join(lines, "\n"), "<!-- session: the stand-in is this machine's driver -->") {
		environ = append(environ, machineEnviron(t, folder)...)
	}
	s := startSession(t, environ, folder)
	names := regexp.MustCompile(`\b` + regexp.QuoteMeta(me.Username) + `\b`)
	shown := strings.NewReplacer(jobs, shownFolder, folder, "/home/"+shownUser)
	run := func(line int, command string, want int) []string {
		got, err := s.run(command, want)
		expect.OK(t, err, path, line, command, "after printing", got)
		for k, text := range got {
			got[k] = strings.TrimRight(names.ReplaceAllString(shown.Replace(text), shownUser), " ")
		}
		return got
	}
	// printed returns what the page is to have: what it has, if that is the same.
	printed := func(line int, command string, want, got []string) []string {
		if samePrinted(want, got) {
			return want
		}
		if *updateDocs {
			return got
		}
		t.Errorf("%s:%d: %s\nprints:\n%s\nthe page has:\n%s", path, line, command, strings.Join(got, "\n"), strings.Join(want, "\n"))
		return want
	}
	at := 0
	all := blocks(lines)
	for i, b := range all {
		switch b.kind {
		case "console":
			now = append(now, lines[at:b.first]...)
			at = b.last
			for i := b.first; i < b.last; {
				command, is := strings.CutPrefix(lines[i], "$ ")
				expect.Must(t, is, path, i+1, "output before any command")
				now = append(now, lines[i])
				begin := i + 1
				for i++; i < b.last && !strings.HasPrefix(lines[i], "$ "); i++ {
				}
				want := lines[begin:i]
				now = append(now, printed(begin, command, want, run(begin, command, len(want)))...)
			}
		case "sh session":
			// What it prints is in the next block, if that is below it.
			var want []string
			shows := follows(all, i+1)
			if shows {
				want = lines[all[i+1].first:all[i+1].last]
			}
			var got []string
			for k, command := range lines[b.first:b.last] {
				got = append(got, run(b.first+k+1, command, len(want)-len(got))...)
			}
			want = printed(b.first+1, lines[b.first], want, got)
			now = append(now, lines[at:b.last+1]...)
			at = b.last + 1
			if shows {
				at = all[i+1].last + 1
			}
			if len(want) > 0 {
				now = append(append(append(now, "", "```text output"), want...), "```")
			}
		}
	}
	return append(now, lines[at:]...)
}

// samePrinted compares output. A line of three dots stands for any lines.
func samePrinted(want, got []string) bool {
	for i, line := range want {
		if line == "..." {
			for skip := range len(got) - i + 1 {
				if samePrinted(want[i+1:], got[i+skip:]) {
					return true
				}
			}
			return false
		}
		if i >= len(got) || masked(line) != masked(got[i]) {
			return false
		}
	}
	return len(want) == len(got)
}

// pageEnviron leaves out what would change a page's sessions.
func pageEnviron(all []string) (out []string) {
	for _, entry := range all {
		if !regexp.MustCompile(`^(RATION_|CUDA_|GPU_|FAKEGPU|LIBCUDA_|LOG_LEVEL=|NVIDIA_|LD_|XDG_|LC_|LANG=|HOME=|NO_COLOR)`).MatchString(entry) {
			out = append(out, entry)
		}
	}
	return out
}

// machineEnviron makes the stand-in the driver of the whole session, and its nvidia-smi.
func machineEnviron(t *testing.T, folder string) []string {
	bin := filepath.Join(folder, "bin")
	t.Setenv(embedded.EnvFolder, filepath.Join(folder, "lib"))
	driver, err := embedded.FakeGPU.Unpack()
	if err == nil {
		err = errors.Join(os.Mkdir(bin, 0o755), os.Symlink(filepath.Join(driver, "fake-smi"), filepath.Join(bin, "nvidia-smi")),
			os.Symlink(filepath.Join(driver, "fake-train"), filepath.Join(bin, "fake-train")))
	}
	expect.OK(t, err)
	return []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "LD_LIBRARY_PATH=" + driver, "FAKEGPU=h200x2", "FAKEGPU_STATE=" + filepath.Join(folder, "gpu")}
}
