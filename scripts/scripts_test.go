// Package scripts_test runs the scripts in repositories made for them.
package scripts_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/check/testenv"
)

// repo is a new git repository with one of the scripts in it.
type repo struct {
	t   *testing.T
	dir string
}

func newRepo(t *testing.T, scripts ...string) repo {
	t.Helper()
	r := repo{t, t.TempDir()}
	for _, name := range scripts {
		text, err := os.ReadFile(name)
		expect.OK(t, err)
		r.write("scripts/"+name, string(text))
	}
	r.git("init", "--quiet")
	return r
}

func (r repo) write(name, text string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	expect.OK(r.t, os.MkdirAll(filepath.Dir(path), 0o755))
	expect.OK(r.t, os.WriteFile(path, []byte(text), 0o755))
}

func (r repo) run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "MAKEFLAGS=",
		"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@localhost", "GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@localhost")
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (r repo) git(args ...string) string {
	r.t.Helper()
	out, err := r.run("git", args...)
	expect.OK(r.t, err, "git", strings.Join(args, " "), out)
	return out
}

func (r repo) commit() {
	r.t.Helper()
	r.git("add", "--all")
	r.git("commit", "--quiet", "--allow-empty", "--message=test")
}

func TestVersion(t *testing.T) {
	r := newRepo(t, "version")
	var sorted []string
	want := func(want string) {
		t.Helper()
		head, _ := r.run("git", "rev-parse", "--short", "HEAD")
		want = strings.Replace(want, "HASH", head, 1)
		got, err := r.run("scripts/version")
		expect.Must(t, got == want && err == nil, got, err, want)
		sorted = append(sorted, strings.Replace(got, "-", "~", 1)) // as in deploy/dist
	}

	r.write("VERSION", "0.2.0\n")
	want("0.2.0-dev") // of an archive
	for range 9 {
		r.commit()
	}
	want("0.2.0-dev.9+gHASH")
	r.commit()
	want("0.2.0-dev.10+gHASH")
	r.git("tag", "other")
	want("0.2.0-dev.10+gHASH")
	sorted = slices.Compact(sorted)
	r.write("scripts/more", "")
	r.git("add", "--all")
	want("0.2.0-dev.10+gHASH.dirty")
	r.commit()
	r.git("tag", "v0.2.0")
	want("0.2.0")
	r.write("scripts/more", "more")
	want("0.2.0+dirty")
	r.commit()
	got, err := r.run("scripts/version")
	expect.True(t, err != nil && strings.Contains(got, "0.2.0 is released"), "one commit after the release", got, err)
	r.write("VERSION", "0.3.0\n")
	r.commit()
	want("0.3.0-dev.2+gHASH")
	r.git("tag", "v0.3.0")
	want("0.3.0")

	// sort -V orders as Debian does.
	cmd := exec.Command("sort", "--version-sort", "--check")
	cmd.Stdin = strings.NewReader(strings.Join(sorted, "\n") + "\n")
	out, err := cmd.CombinedOutput()
	expect.Equal(t, err, nil, "versions do not sort by age", out, strings.Join(sorted, "\n"))
}

// ration is a program that measures a charge, too low at first and too high then,
// and one row of its own.
func ration(charge, own string) string {
	return `#!/bin/sh
[ "$2" = update ] || exit 1
echo >>"$0.runs"
case $(wc -l <"$0.runs") in
1) charge=1 ;;
2) charge=900 ;;
*) charge=` + charge + ` ;;
esac
echo '{"results": [{"bench": "update", "rows": [
	{"name": "charge", "unit": "ns", "value": '$charge'}, {"name": "` + own + `", "unit": "", "value": 7}]}]}'
`
}

func TestBenchCompare(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("jq is not installed; make test installs it")
	}
	r := newRepo(t, "version", "bench-compare", "need")
	r.write("VERSION", "0.2.0\n")
	r.write("Makefile", "all:\n\tmkdir -p bin && cp ration bin/\n")
	r.write("shim/Makefile", "bench:\n\t@echo the same in C\n")
	r.write(".gitignore", "bin\n")
	r.write("ration", ration("50", "old"))
	r.commit()
	compare := func() string {
		t.Helper()
		out, err := r.run("scripts/bench-compare")
		expect.OK(t, err, out)
		return out
	}
	out := compare()
	expect.True(t, strings.Contains(out, "no tag"), "without a tag", out)

	r.git("tag", "v0.2.0")
	r.write("VERSION", "0.3.0\n")
	r.write("ration", ration("60", "new"))
	r.commit()
	r.git("tag", "v0.3.0") // what is compared, not what it is compared with
	out = compare()
	var lines []string
	for line := range strings.Lines(out) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	for _, want := range []string{
		"v0.2.0 against 0.3.0, medians of 3 in turn:",
		"update charge, Go 50.0 60.0 ns +20 %",
		"update old, Go 7.0 -",
		"update new, Go - 7.0",
		"the same in C",
	} {
		expect.True(t, slices.Contains(lines, want), "no line", want, out)
	}
	left := r.git("worktree", "list")
	expect.True(t, !strings.Contains(left, "\n"), "left behind", left)
}

// steps runs its commands in turn, says at the end what was skipped and why, and fails with the one
// that fails.
func TestSteps(t *testing.T) {
	r := newRepo(t, "steps")
	out, err := r.run("scripts/steps", "all:3", `go=echo 'ok   a'; echo 'ok   b'; echo 'skipped: only root can mount (2 tests)'`,
		`c:2=echo 'c: 3 passed, 0 failed'; echo '  in-c: skipped: no memory'`, "long:4=false", "late:1?=exit 124")
	expect.True(t, err == nil, err)
	for _, want := range []string{"2 packages passed", "3 passed, 0 failed", "  go: skipped: only root can mount (2 tests)\n", "  c: skipped: no memory\n",
		"  long: skipped: it may take 4 minutes, and 3 of 3 are left\n", "  late: skipped: it did not end within 1 minutes", "\nall: all passed (go, c) in 0 min "} {
		expect.True(t, strings.Contains(out, want), "no", want, out)
	}
	out, err = r.run("scripts/steps", "all", "first=echo why; exit 3", "second=echo never")
	_, late := r.run("scripts/steps", "all", "late:1=exit 124")
	_, failed := r.run("scripts/steps", "all", "failed:1?=exit 1")
	expect.True(t, late != nil && failed != nil, late, failed)
	expect.True(t, err != nil && strings.HasPrefix(out, "why\nall: first failed with status 3") && !strings.Contains(out, "never"), out, err)
}

// steps ends a step that has had its minutes. Where the machine did not have its processors for that long, the step has
// all the minutes of its target, and has shown nothing if it does not end within them.
func TestStepsWithoutProcessors(t *testing.T) {
	r := newRepo(t, "steps")
	steps := func(arguments ...string) (string, error) {
		r.write("stat", "cpu 100 0 0 0 0 0 0 5000 0 0\ncpu0\ncpu1\n")
		r.write("uptime", "1000.00 1000.00\n")
		return r.run("env", append([]string{"STEPS_PROC=.", "scripts/steps"}, arguments...)...)
	}
	// at is a command after which some minutes have passed, some ticks of which two processors were taken away.
	at := func(minutes, ticks int) string {
		return fmt.Sprintf(`printf "cpu 110 0 0 0 0 0 0 %d 0 0\ncpu0\ncpu1\n" >new; mv new stat; echo %d.00 >new; mv new uptime; `, 5000+ticks, 1000+60*minutes)
	}
	const minute, hang = 60 * 2 * 100, "sleep 600"
	out, err := steps("all:60", "late:2="+at(2, 0)+hang)
	expect.True(t, err != nil && strings.Contains(out, "all: late failed with status 124"), out, err)
	out, err = steps("all:6", "late:5="+at(6, 4*minute)+hang, "next:2=true")
	expect.True(t, err == nil && strings.Contains(out, "late: skipped: this machine had its processors for 120 of 360 s") && strings.Contains(out, "  next: skipped: it may take 2 minutes, and 0 of 6 are left") &&
		strings.HasSuffix(out, "\nall: all skipped"), out, err)
	out, err = steps("all:60", "slow:5="+at(6, 3*minute)+"sleep 2")
	expect.True(t, err == nil && strings.Contains(out, "\nall: all passed (slow) in 6 min 0 s"), out, err)
	out, err = steps("all:60", "back:5="+at(2, -20*minute)+"sleep 2")
	expect.True(t, err == nil, "a counter that went back", out, err)
	out, err = steps("all:60", "broken:10="+at(4, 3*minute+1000)+"echo why; exit 3")
	expect.True(t, err == nil && strings.Contains(out, "why\n") && strings.Contains(out, "and the step failed with status 3"), out, err)
	for _, c := range []struct{ what, target, step string }{
		{"none", "all:60", "broken:10=" + at(2, 0) + "exit 3"},
		{"a little before a failure", "all:60", "broken:10=" + at(3, minute) + "exit 3"},
		{"a tick, all minutes that are left", "all:3", "broken:3=" + at(3, 1) + hang},
		{"a tick", "all:60", "broken:2=" + at(2, 1) + hang},
		{"a little, when the minutes are over", "all:60", "broken:2=trap '" + at(2, 2*minute) + "' TERM; " + at(2, 0) + "sleep 600 & wait"},
	} {
		out, err = steps(c.target, c.step)
		expect.True(t, err != nil && strings.Contains(out, "all: broken failed with status "), c.what, out, err)
	}
}

// gotest prints why tests were skipped, and of tests that failed what they wrote.
func TestGoTest(t *testing.T) {
	testenv.HasTool(t, "jq")
	r := newRepo(t, "gotest")
	r.write("go.mod", "module m\n")
	test := "package m\nimport \"testing\"\nfunc TestQuiet(t *testing.T) { t.Log(\"quiet\") }\nfunc TestSkip(t *testing.T) { t.Skip(\"no reason\") }\n"
	r.write("m_test.go", test)
	out, err := r.run("scripts/gotest", ".")
	expect.True(t, err == nil && strings.HasPrefix(out, "ok ") && strings.HasSuffix(out, "\nskipped: no reason (1 test)") && !strings.Contains(out, "quiet"), out, err)
	r.write("m_test.go", test+"func TestLoud(t *testing.T) { t.Error(\"broken\") }\n")
	out, err = r.run("scripts/gotest", ".")
	expect.True(t, err != nil && strings.Contains(out, ": broken\n") && strings.Contains(out, "skipped: no reason") && !strings.Contains(out, "quiet"), out, err)
}

// make release-test runs every suite that the Makefile has, and all that CI runs.
func TestReleaseRunsAll(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	expect.OK(t, err)
	ci, err := os.ReadFile("../.ci/run")
	expect.OK(t, err)
	list := regexp.MustCompile(`(?m)^RELEASE := ((.*\\\n)*.*)$`).FindSubmatch(makefile)
	expect.Must(t, list != nil, "the Makefile has no list RELEASE")
	runs := strings.Fields(strings.ReplaceAll(string(list[1]), "\\\n", " "))
	runs = append(runs, "race-go", "race-kube", "sanitizers") // by race
	suites := regexp.MustCompile(`(?m)^(test[\w-]*|e2e-[\w-]*|race|arm64|mutants|stress):.*##`).FindAllSubmatch(makefile, -1)
	suites = append(suites, regexp.MustCompile(`(?:make|e2e) ([a-z][\w-]*)`).FindAllSubmatch(ci[bytes.Index(ci, []byte("\nscripts/steps")):], -1)...)
	expect.Must(t, len(suites) > 20, "found only", len(suites))
	for _, s := range suites {
		switch name := string(s[1]); name {
		case "test-python": // by test
		case "e2e-scale": // measures
		default:
			expect.True(t, slices.Contains(runs, name), "make release-test does not run", name)
		}
	}
}

// make test-kube fails if the modules cannot be fetched, before it tests anything, and says so.
func TestModulesThatCannotBeFetched(t *testing.T) {
	cmd := exec.Command("make", "--silent", "-C", "..", "-o", "native", "-o", "build/staticcheck", "-o", "build/promtool", "test-kube")
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "GOPROXY=off", "GOMODCACHE="+t.TempDir())
	out, err := cmd.CombinedOutput()
	expect.True(t, err != nil && strings.Contains(string(out), "the modules of kube cannot be fetched") && !strings.Contains(string(out), "check/kube"), err, string(out))
}
