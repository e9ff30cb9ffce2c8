package cli

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/fleet/sim"
	"ration/check/testenv"
	"ration/internal/fleet"
	"ration/internal/job"
	"ration/machine"
)

// startWeb starts ration web as a command of args, and returns the page's address.
func startWeb(t *testing.T, folder string, args ...string) string {
	t.Helper()
	return startWebWith(t, folder, nil, args...)
}

// startWebWith is startWeb with flags.
func startWebWith(t *testing.T, folder string, flags []string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], append(append(args[1:], "web", "--json", "--listen", "127.0.0.1:0"), flags...)...)
	cmd.Env = append(os.Environ(), environ(folder)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	expect.OK(t, err)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		expect.Equal(t, cmd.Wait(), nil, "ration web ended with")
	})
	var p Page
	expect.OK(t, json.NewDecoder(out).Decode(&p))
	wantUndumpable(t, cmd.Process.Pid)
	return p.URL
}

// wantUndumpable checks that no other process of its user can read the memory of a process of a user that is not
// root: the kernel gives the files in /proc of such a process to root.
func wantUndumpable(t *testing.T, pid int) {
	t.Helper()
	var files unix.Stat_t
	expect.OK(t, unix.Stat(fmt.Sprintf("/proc/%d/mem", pid), &files))
	expect.True(t, files.Uid == 0, "the memory of process", pid, "is for user", files.Uid)
}

func getPage(t *testing.T, address string) (int, string, []*http.Cookie) {
	t.Helper()
	answer, err := http.Get(address)
	expect.OK(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	expect.OK(t, err)
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
	status, text, _ := getPage(t, bare)
	expect.True(t, status == http.StatusForbidden && !strings.Contains(text, "train"), "without the token", status, text)
	other := startWeb(t, folder, "ration")
	_, token, _ := strings.Cut(other, "?")
	status, _, _ = getPage(t, bare+"?"+token)
	expect.Equal(t, status, http.StatusForbidden, "with the token of another page")
	status, text, cookies := getPage(t, address)
	for _, want := range []string{"train", "rank-0", "asked for 30 GiB", "4.14 GiB", "limit-form"} {
		expect.Must(t, status == http.StatusOK && strings.Contains(text, want), status, "the page does not have", want)
	}
	_, rest, _ := strings.Cut(text, `<span class="job-name">train</span>`)
	form := url.Values{"memory": {"20g"}}
	for _, name := range []string{"form", "job"} {
		_, value, _ := strings.Cut(rest, `name="`+name+`" value="`)
		value, _, _ = strings.Cut(value, `"`)
		form.Set(name, value)
	}
	r, err := http.NewRequest("POST", bare+"limit", strings.NewReader(form.Encode()))
	expect.OK(t, err)
	r.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Accept": {"application/json"}, "Origin": {"http://" + r.Host}}
	r.AddCookie(cookies[0])
	answer, err := http.DefaultClient.Do(r)
	expect.OK(t, err)
	defer answer.Body.Close()
	said, _ := io.ReadAll(answer.Body)
	expect.True(t, strings.Contains(string(said), "the limit is 20 GiB now; it was 10 GiB"), answer.StatusCode, said)
	t.Setenv("RATION_DIR", folder)
	j, err := machine.ReadJob("train")
	expect.True(t, err == nil && j.Devices[0].Limit == 20<<30, j.Devices, err)
}

// Who may not change a limit has no form for it.
func TestMayChangeLimit(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "region")
	expect.OK(t, os.WriteFile(path, nil, 0o600))
	own := machine.Job{Path: path, UID: os.Geteuid()}
	expect.True(t, mayChangeLimit(&own), "the own limit")
	bad := machine.Job{Path: path, UID: os.Geteuid(), Error: "damaged"}
	expect.True(t, !mayChangeLimit(&bad), "that of a job which cannot be read")
	other := machine.Job{Path: path, UID: os.Geteuid() + 1}
	expect.Equal(t, mayChangeLimit(&other), os.Geteuid() == 0, "another user's")
}

// Another user's page, by root's agent, has nothing of root's jobs; root's has.
func TestWebOfAnotherUser(t *testing.T) {
	testenv.NeedsRoot(t, "needs another user: run it as root")
	folder := t.TempDir()
	program, err := exec.LookPath("ration")
	expect.OK(t, errors.Join(err, openParents(folder), openParents(filepath.Dir(program))))
	startJob(t, folder, "secretjob", []string{"10g", "518m", "2900m", "secretrank", "30g"})
	startAgent(t, folder)
	expect.OK(t, os.Chmod(filepath.Join(folder, job.AgentSocket), 0o666)) // all users may ask it
	for command, sees := range map[string]bool{"ration": true, "asnobody": false} {
		args := []string{command}
		if !sees {
			args = append(args, "ration")
		}
		_, text, _ := getPage(t, startWeb(t, folder, args...))
		got := strings.Contains(text, "secretjob") || strings.Contains(text, "secretrank")
		expect.True(t, got == sees && strings.Contains(text, "What happened"), command, "sees it", got)
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
		expect.True(t, !strings.Contains(text, ":localhost:"), name, "forwards to localhost (write 127.0.0.1)")
	}
	expect.True(t, count >= 2, "only", count, "places say how to forward the port")
}

// A page that is served at all addresses is opened at one of them.
func TestHostOfPage(t *testing.T) {
	network := func(of ...string) func() ([]net.Addr, error) {
		return func() (all []net.Addr, err error) {
			for _, text := range of {
				ip, n, err := net.ParseCIDR(text)
				expect.OK(t, err)
				all = append(all, &net.IPNet{IP: ip, Mask: n.Mask})
			}
			return all, nil
		}
	}
	for _, c := range []struct {
		at   string
		has  []string
		want string
	}{
		{"10.0.0.7", []string{"10.0.0.9/8"}, "10.0.0.7:9411"},
		{"0.0.0.0", []string{"127.0.0.1/8", "fe80::1/64", "2001:db8::5/64", "10.0.0.9/8", "10.0.0.8/8"}, "10.0.0.9:9411"},
		{"::", []string{"::1/128", "fe80::1/64", "2001:db8::5/64"}, "[2001:db8::5]:9411"},
		{"0.0.0.0", []string{"2001:db8::5/64"}, "127.0.0.1:9411"},
		{"::", nil, "127.0.0.1:9411"},
	} {
		expect.Equal(t, hostOf(&net.TCPAddr{IP: net.ParseIP(c.at), Port: 9411}, network(c.has...)), c.want, c.at)
	}
}

// tlsFiles writes a certificate of 127.0.0.1 with its key and its authority, and a token.
func tlsFiles(t *testing.T) (folder string, serve []string) {
	t.Helper()
	folder = t.TempDir()
	authority, err := sim.NewAuthority()
	expect.OK(t, err)
	cert, err := authority.Certificate("127.0.0.1", time.Now().Add(time.Hour))
	expect.OK(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	expect.OK(t, err)
	for name, text := range map[string][]byte{"cert": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), "key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		"ca": authority.PEM(), "token": []byte(sim.Token), "other": []byte(strings.Repeat("f", 32))} {
		expect.OK(t, os.WriteFile(filepath.Join(folder, name), text, 0o600))
	}
	at := func(name string) string { return filepath.Join(folder, name) }
	return folder, []string{"--tls-cert", at("cert"), "--tls-key", at("key"), "--token-file", at("token"), "--read-only"}
}

// A real machine with a job is read by a real ration web --fleet, with its certificate and token. With another
// token, or without the authority, nothing of it is shown, and the page says why.
func TestFleet(t *testing.T) {
	folder := jobsFolder(t)
	startJob(t, folder, "secretname", []string{"10g", "518m", "2900m", "rank-0"})
	files, serve := tlsFiles(t)
	machine := startWebWith(t, folder, append([]string{"--no-agent"}, serve...), "ration")
	at := strings.TrimSuffix(strings.TrimPrefix(machine, "https://"), "/")
	expect.True(t, strings.HasPrefix(machine, "https://127.0.0.1:") && !strings.Contains(machine, "token"), machine)
	for _, c := range []struct{ token, ca, state, says string }{
		{"token", "ca", fleet.Up, ""},
		{"other", "ca", fleet.Unreachable, "it refuses the token"},
		{"token", "", fleet.Unreachable, "unknown authority"},
	} {
		args := []string{"--fleet", at, "--fleet-token", filepath.Join(files, c.token)}
		if c.ca != "" {
			args = append(args, "--ca", filepath.Join(files, c.ca))
		}
		page := startWebWith(t, folder, args, "ration")
		var state fleet.State
		for state.Machines == nil || state.Machines[0].State == fleet.Connecting {
			_, text, _ := getPage(t, strings.Replace(page, "?", "v1/fleet?", 1))
			expect.OK(t, checkSchema("fleet", []byte(text)))
			expect.OK(t, json.Unmarshal([]byte(text), &state))
			expect.True(t, !strings.Contains(text, "secretname") && !strings.Contains(text, sim.Token), text)
		}
		m := state.Machines[0]
		expect.True(t, m.Name == at && m.State == c.state && strings.Contains(m.Reason, c.says), m)
		expect.True(t, (m.Jobs == 1) == (c.state == fleet.Up), m)
		_, text, _ := getPage(t, page)
		expect.True(t, strings.Contains(text, at) && strings.Contains(text, c.says), text)
		var once bytes.Buffer
		err := execute(append([]string{"fleet", at}, args[2:]...), &once, io.Discard)
		expect.True(t, (err == nil) == (c.state == fleet.Up) && strings.Contains(once.String(), at) && strings.Contains(once.String(), c.says), once.String(), err)
	}
}

// Flags that would send the token unencrypted, or serve nothing, are refused.
func TestFleetFlags(t *testing.T) {
	for _, c := range []struct {
		flags webFlags
		ok    bool
	}{
		{webFlags{}, true},
		{webFlags{tlsCert: "c", tlsKey: "k", token: "t"}, true},
		{webFlags{fleet: []string{"node1"}, fleetToken: "t", ca: "ca"}, true},
		{webFlags{token: "t"}, false},
		{webFlags{tlsCert: "c"}, false},
		{webFlags{tlsKey: "k"}, false},
		{webFlags{fleet: []string{"node1"}}, false},
		{webFlags{fleetToken: "t"}, false},
		{webFlags{ca: "ca"}, false},
		{webFlags{fleet: []string{"node1"}, fleetToken: "t", noAgent: true}, false},
	} {
		err := c.flags.checkRemote()
		expect.True(t, (err == nil) == c.ok && (err == nil || exitStatus(err) == ExitUsage), c.flags, err)
	}
}

// A certificate that was renewed is used without a restart; half of a new one is not.
func TestCertificateIsReadAgain(t *testing.T) {
	files, serve := tlsFiles(t)
	c := &certificate{cert: serve[1], key: serve[3]}
	first, err := c.get(nil)
	expect.OK(t, err)
	newer, _ := tlsFiles(t)
	replace := func(name string, after time.Duration) {
		text, err := os.ReadFile(filepath.Join(newer, name))
		path, when := filepath.Join(files, name), time.Now().Add(after)
		expect.OK(t, errors.Join(err, os.WriteFile(path, text, 0o600), os.Chtimes(path, when, when)))
	}
	replace("cert", time.Minute)
	half, err := c.get(nil)
	expect.True(t, err == nil && half == first, err)
	replace("key", time.Minute)
	second, err := c.get(nil)
	expect.True(t, err == nil && second != first && !bytes.Equal(second.Certificate[0], first.Certificate[0]), err)
	expect.OK(t, os.Remove(filepath.Join(files, "cert")))
	third, err := c.get(nil)
	expect.True(t, err == nil && third == second, err)
}
