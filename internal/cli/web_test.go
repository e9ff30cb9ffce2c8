package cli

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/machine"
)

// startWeb starts ration web as a command of args, and returns the page's address.
func startWeb(t *testing.T, folder string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], append(args[1:], "web", "--json", "--listen", "127.0.0.1:0")...)
	cmd.Env = append(os.Environ(), environ(folder)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must(t, err)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("ration web ended with %v", err)
		}
	})
	var p Page
	must(t, json.NewDecoder(out).Decode(&p))
	return p.URL
}

func getPage(t *testing.T, address string) (int, string, []*http.Cookie) {
	t.Helper()
	answer, err := http.Get(address)
	must(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(text), answer.Cookies()
}

// The page of real jobs, without an agent: it is for who has the address, and changes a limit as
// ration limit does.
func TestWeb(t *testing.T) {
	folder := jobsFolder(t)
	startJob(t, folder, "train", []string{"10g", "518m", "2900m", "rank-0"}, []string{"10g", "518m", "300m", "eval", "30g"})
	startJob(t, folder, "fixed", []string{"4g", "518m", "1g", "server"})
	address := startWeb(t, folder, "ration")
	bare, _, _ := strings.Cut(address, "?")
	if status, text, _ := getPage(t, bare); status != http.StatusForbidden || strings.Contains(text, "train") {
		t.Errorf("without the token: %d %s", status, text)
	}
	other := startWeb(t, folder, "ration")
	_, token, _ := strings.Cut(other, "?")
	if status, _, _ := getPage(t, bare+"?"+token); status != http.StatusForbidden {
		t.Errorf("with the token of another page: %d", status)
	}
	status, text, cookies := getPage(t, address)
	for _, want := range []string{"train", "rank-0", "asked for 30 GiB", "4.14 GiB", "limit-form"} {
		if status != http.StatusOK || !strings.Contains(text, want) {
			t.Fatalf("%d: the page does not have %q", status, want)
		}
	}
	_, rest, _ := strings.Cut(text, `<h3>train</h3>`)
	form := url.Values{"memory": {"20g"}}
	for _, name := range []string{"form", "job"} {
		_, value, _ := strings.Cut(rest, `name="`+name+`" value="`)
		value, _, _ = strings.Cut(value, `"`)
		form.Set(name, value)
	}
	r, err := http.NewRequest("POST", bare+"limit", strings.NewReader(form.Encode()))
	must(t, err)
	r.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Accept": {"application/json"}, "Origin": {"http://" + r.Host}}
	r.AddCookie(cookies[0])
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	defer answer.Body.Close()
	if said, _ := io.ReadAll(answer.Body); !strings.Contains(string(said), "the limit is 20 GiB now; it was 10 GiB") {
		t.Errorf("%d %s", answer.StatusCode, said)
	}
	t.Setenv("RATION_DIR", folder)
	j, err := machine.ReadJob("train")
	if err != nil || j.Devices[0].Limit != 20<<30 {
		t.Errorf("%+v, %v", j.Devices, err)
	}
}

// Who may not change a limit has no form for it.
func TestMayChangeLimit(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "region")
	must(t, os.WriteFile(path, nil, 0o600))
	own := machine.Job{Path: path, UID: os.Geteuid()}
	if !mayChangeLimit(&own) {
		t.Error("the own limit")
	}
	if bad := (machine.Job{Path: path, UID: os.Geteuid(), Error: "damaged"}); mayChangeLimit(&bad) {
		t.Error("that of a job which cannot be read")
	}
	if other := (machine.Job{Path: path, UID: os.Geteuid() + 1}); mayChangeLimit(&other) != (os.Geteuid() == 0) {
		t.Error("another user's")
	}
}

// Another user's page, by root's agent, has nothing of root's jobs; root's has.
func TestWebOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs another user: run it as root")
	}
	folder := t.TempDir()
	program, err := exec.LookPath("ration")
	must(t, errors.Join(err, openParents(folder), openParents(filepath.Dir(program))))
	startJob(t, folder, "secretjob", []string{"10g", "518m", "2900m", "secretrank", "30g"})
	startAgent(t, folder)
	must(t, os.Chmod(filepath.Join(folder, job.AgentSocket), 0o666)) // all users may ask it
	for command, sees := range map[string]bool{"ration": true, "asnobody": false} {
		args := []string{command}
		if !sees {
			args = append(args, "ration")
		}
		_, text, _ := getPage(t, startWeb(t, folder, args...))
		if got := strings.Contains(text, "secretjob") || strings.Contains(text, "secretrank"); got != sees || !strings.Contains(text, "What happened") {
			t.Errorf("%s sees it: %v", command, got)
		}
	}
}

// What is forwarded to localhost can be led to ::1, where another user may listen at the same port
// before the page's own user does: the first request, with the token, would be theirs.
func TestForwardToTheAddress(t *testing.T) {
	pages := docPages(t)
	pages["ration web --help"] = newWebCommand(&app{}).Long
	count := 0
	for name, text := range pages {
		count += strings.Count(text, "ssh -L 9411:127.0.0.1:9411")
		if strings.Contains(text, ":localhost:") {
			t.Errorf("%s: forwards to localhost (write 127.0.0.1)", name)
		}
	}
	if count < 2 {
		t.Errorf("only %d places say how to forward the port", count)
	}
}
