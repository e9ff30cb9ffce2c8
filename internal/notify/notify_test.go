package notify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
	"ration/machine"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == DeliverCommand {
		status, err := Deliver(os.Args[2:], os.Stdin)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(status)
	}
	firstPause = time.Millisecond
	os.Exit(m.Run())
}

// hostile is a notification with a job whose name tries everything.
func hostile() Notification {
	const name = "x\r\nBcc: all@example.com\n\n.\n<!channel> <@U123> @here &amp; <https://evil.example|bank>\x1b]0;owned\a"
	return Notification{Kind: Refusal, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Host: "gpu1", User: "eve\n@all", UID: 1000, Job: name,
		Text: "job " + name + " was refused", Remedy: "look"}.printable()
}

// A name of a tenant mentions nobody in Slack, nor in programs that take the same format.
func TestSlackHostile(t *testing.T) {
	r := Rule{Format: Slack}
	n := hostile()
	body, err := r.body(&n)
	expect.Must(t, err == nil, err)
	var m slackMessage
	expect.Must(t, json.Unmarshal(body, &m) == nil, string(body))
	expect.True(t, !strings.ContainsAny(m.Text, "<>\r\x1b\a") && strings.Contains(m.Text, "&lt;!channel&gt;") && strings.Contains(m.Text, "&amp;amp;"), m.Text)
	expect.True(t, !strings.Contains(m.Text, "@here") && !strings.Contains(m.Text, "@U123"), m.Text)
	expect.Equal(t, strings.Count(m.Text, "\n"), 1, "only our own line break")
}

// A name of a tenant adds no line to the header of an e-mail, and does not end it.
func TestMailHostile(t *testing.T) {
	r := Rule{Format: Email, To: []string{"admin@example.com"}, From: "ration@example.com"}
	n := hostile()
	body, err := r.body(&n)
	expect.Must(t, err == nil, err)
	m, err := mail.ReadMessage(bytes.NewReader(body))
	expect.Must(t, err == nil, err)
	expect.Equal(t, len(m.Header), 8, m.Header)
	expect.Equal(t, m.Header.Get("Bcc"), "")
	subject, err := new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject"))
	expect.True(t, err == nil && strings.HasPrefix(subject, "[ration] gpu1: job x") && len([]rune(subject)) == maxSubject, subject, err)
	for line := range bytes.Lines(body) {
		expect.True(t, len(line) <= 998 && string(line) != ".\n", string(line))
	}
}

// script writes a program that nobody can run, and returns its path and a file that it can write.
func script(t *testing.T, text string) (path, out string) {
	dir, err := os.MkdirTemp("", "ration-notify-")
	expect.Must(t, err == nil, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	expect.Must(t, os.Chmod(dir, 0o755) == nil)
	path, out = filepath.Join(dir, "script"), filepath.Join(dir, "out")
	expect.Must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+strings.ReplaceAll(text, "OUT", out)), 0o755) == nil)
	expect.Must(t, os.WriteFile(out, nil, 0o666) == nil && os.Chmod(out, 0o666) == nil)
	return path, out
}

// A command reads the notification, as nobody, with no rights, no environment and no descriptors of ours.
func TestCommand(t *testing.T) {
	t.Setenv("SECRET", "of-root")
	path, out := script(t, `cat >OUT
echo "args=$*" >>OUT
tr '\0' '\n' </proc/$$/environ | grep -c SECRET >>OUT
ls /proc/$$/fd | tr '\n' ' ' >>OUT
grep -E '^(Uid|Gid|Groups|CapEff|CapPrm|NoNewPrivs)' /proc/$$/status >>OUT
`)
	r := Rule{Format: JSON, Command: []string{path, "-a", "b c"}}
	n := hostile()
	err := r.Send(t.Context(), &n)
	expect.Must(t, err == nil, err)
	text, err := os.ReadFile(out)
	expect.Must(t, err == nil, err)
	line, rest, _ := strings.Cut(string(text), "\n")
	var got Notification
	expect.Must(t, json.Unmarshal([]byte(line), &got) == nil, line)
	expect.Equal(t, got, n)
	expect.True(t, strings.HasPrefix(rest, "args=-a b c\n0\n0 1 10 2 ") || strings.HasPrefix(rest, "args=-a b c\n0\n0 1 2 10 "), rest) // 10 is the shell's own
	expect.True(t, strings.Contains(rest, "NoNewPrivs:\t1"), rest)
	if os.Geteuid() == 0 {
		for _, part := range []string{"Uid:\t65534\t65534\t65534\t65534", "Gid:\t65534\t65534\t65534\t65534", "Groups:\t \n", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000"} {
			expect.True(t, strings.Contains(rest, part), rest, part)
		}
	}
}

// A command that does not end is killed, and its error is sent with what it printed.
func TestCommandEnds(t *testing.T) {
	slow, _ := script(t, "echo begun\nexec sleep 100\n")
	defer func() { sendTimeout = 30 * time.Second }()
	r, n := Rule{Format: JSON, Command: []string{slow}}, NewTest(time.Now())
	var err error
	for sendTimeout = 500 * time.Millisecond; sendTimeout < time.Minute; sendTimeout *= 4 { // until it has begun
		if err = r.Send(t.Context(), &n); err == nil || strings.Contains(err.Error(), "begun") {
			break
		}
	}
	expect.True(t, err != nil && strings.Contains(err.Error(), "did not end in "+sendTimeout.String()+", and was killed") && strings.Contains(err.Error(), "begun"), err)
	sendTimeout = 30 * time.Second
	wrong, _ := script(t, "echo 'no such\033[2J pager'\nexit 4\n")
	r.Command = []string{wrong}
	err = r.Send(t.Context(), &n)
	expect.True(t, err != nil && strings.Contains(err.Error(), "exit status 4: no such?[2J pager"), err)
	r.Command = []string{"/no/such/program"}
	err = r.Send(t.Context(), &n)
	expect.True(t, err != nil && strings.Contains(err.Error(), "starting /no/such/program as nobody"), err)
}

// sendmail gets its recipients as arguments, and the mail on its standard input.
func TestSendmail(t *testing.T) {
	path, out := script(t, "echo \"$*\" >OUT\ncat >>OUT\n")
	r, n := Rule{Format: Email, To: []string{"a@example.com", "b@example.com"}, Sendmail: path}, hostile()
	err := r.Send(t.Context(), &n)
	expect.Must(t, err == nil, err)
	text, _ := os.ReadFile(out)
	expect.True(t, strings.HasPrefix(string(text), "-i -- a@example.com b@example.com\nTo: a@example.com, b@example.com\nSubject: "), string(text))
}

// A URL gets the body. An error that may pass is tried again, others and redirections are not, and no error
// shows the URL.
func TestURL(t *testing.T) {
	var asked atomic.Int32
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ = io.ReadAll(r.Body)
		switch n := asked.Add(1); r.URL.Path {
		case "/busy/secret":
			if n < 3 {
				w.WriteHeader(http.StatusTooManyRequests)
			}
		case "/down/secret":
			w.WriteHeader(http.StatusBadGateway)
		case "/gone/secret":
			http.Error(w, "no such hook", http.StatusNotFound)
		case "/moved/secret":
			http.Redirect(w, r, "/ok/secret", http.StatusTemporaryRedirect)
		}
	}))
	defer server.Close()
	for _, c := range []struct {
		path, want string
		asked      int32
	}{
		{"/ok/secret", "", 1}, {"/busy/secret", "", 3}, {"/down/secret", "the server answers 502", maxTries},
		{"/gone/secret", "the server answers 404 Not Found: no such hook", 1}, {"/moved/secret", "the server answers 307", 1},
	} {
		asked.Store(0)
		r, n := Rule{Format: JSON, URL: server.URL + c.path}, hostile()
		err := r.retry(t.Context(), &n)
		expect.True(t, (err == nil) == (c.want == "") && (err == nil || strings.Contains(err.Error(), c.want)), c.path, err)
		expect.True(t, err == nil || !strings.Contains(err.Error(), "secret"), err)
		expect.Equal(t, asked.Load(), c.asked, c.path)
		var got Notification
		expect.True(t, json.Unmarshal(body, &got) == nil && got == n, string(body))
	}
	server.Close()
	file := filepath.Join(t.TempDir(), "url")
	expect.Must(t, os.WriteFile(file, []byte(server.URL+"/secret\n"), 0o600) == nil)
	r, n := Rule{Format: Slack, URLFile: file}, hostile()
	err := r.retry(t.Context(), &n)
	expect.Equal(t, err.Error(), "connecting to "+host(server.URL)+": connection refused (it may work later)")
	expect.Must(t, os.WriteFile(file, []byte("hello secret\n"), 0o600) == nil)
	err = r.retry(t.Context(), &n)
	expect.True(t, err != nil && strings.Contains(err.Error(), "not a URL") && !strings.Contains(err.Error(), "secret"), err)
}

// syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A receiver that never answers delays neither the caller nor another receiver, and the log says what was
// dropped.
func TestQueue(t *testing.T) {
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer server.Close()
	defer close(hang)
	path, out := script(t, "cat >>OUT\n")
	var log syncBuffer
	d := NewDispatcher([]Rule{{Format: JSON, URL: server.URL}, {Format: JSON, Command: []string{path}, Events: []string{Death}}}, slog.New(slog.NewTextHandler(&log, nil)))
	began := time.Now()
	for range maxQueued + 10 {
		d.Send(Notification{Kind: Refusal})
	}
	d.Send(Notification{Kind: Death})
	expect.True(t, time.Since(began) < 5*time.Second, time.Since(began))
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if text, _ := os.ReadFile(out); bytes.Contains(text, []byte(`"kind":"death"`)) {
			expect.Equal(t, bytes.Count(text, []byte("\n")), 1)
			break
		}
		expect.Must(t, time.Now().Before(end), "the other receiver waits")
	}
	d.Close()
	text := log.String()
	expect.True(t, strings.Contains(text, "notifications are dropped from now on"), text)
	lost := strings.Count(text, "kind=refusal") // the other receiver has written, and may have been killed before it ended
	for _, m := range regexp.MustCompile(`dropped=(\d+)`).FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(m[1])
		expect.OK(t, err)
		lost += n
	}
	expect.Equal(t, lost, maxQueued+11, text)
}

// Each problem is sent once while it lasts, and a repeated one is counted.
func TestWatcher(t *testing.T) {
	var log syncBuffer
	now := time.Now()
	w := NewWatcher(slog.New(slog.NewTextHandler(&log, nil)), now)
	job := machine.Job{Name: "train", Path: "/run/ration/train/region", Owner: "ada", UID: 1000, State: machine.Running,
		Devices: []machine.Device{{Device: 0, UUID: "GPU-a", Limited: true, Limit: 100, Used: 94}}}
	m := machine.Machine{Devices: []machine.GPU{{Device: 0, UUID: "GPU-a"}, {Device: 1, UUID: "GPU-b"}}, Jobs: []machine.Job{job}}
	update := func(after time.Duration, events ...machine.Event) (kinds string) {
		t.Helper()
		now = now.Add(after)
		for _, n := range w.Update(&m, events, now) {
			kinds += fmt.Sprintf("%s%d/%d ", n.Kind, n.Device, n.Repeated)
		}
		return kinds
	}
	refusal := func(n int) machine.Event {
		return machine.Event{Kind: machine.RequestRefused, Time: now.Add(time.Duration(n)), Path: job.Path, UID: 1000, Refusal: &machine.Refusal{Time: now.Add(time.Duration(n)), PID: n}, Text: "refused"}
	}
	old := refusal(0)
	old.Time = now.Add(-time.Hour)
	expect.Equal(t, update(0, old), "", "what happened before is not sent")
	first := refusal(1)
	expect.Equal(t, update(0, first, refusal(2), refusal(3)), "refusal0/0 ")
	expect.Equal(t, update(quiet, first), "", "an agent that starts again sends it again")
	expect.Equal(t, update(0, refusal(4)), "refusal0/2 ")
	own := machine.Event{Kind: machine.RequestRefused, Time: now, UID: 1001, Denied: &machine.Denied{Time: now.Add(-1), Device: -1, Own: true}}
	expect.Equal(t, update(0, own), "", "what a user asked for beyond that user's ration")
	expect.Equal(t, update(0, machine.Event{Kind: machine.RequestRefused, Time: now, UID: 1001, Denied: &machine.Denied{Time: now, Device: 1}},
		machine.Event{Kind: machine.ProcessDied, Time: now, Path: job.Path, UID: 1000}, machine.Event{Kind: machine.JobStarted, Time: now}), "policy-refused1/0 death-1/0 ")

	m.Jobs[0].Devices[0].Used = 95
	expect.Equal(t, update(0), "near-limit0/0 ")
	m.Jobs[0].Devices[0].Used = 91
	expect.Equal(t, update(2*quiet), "")
	m.Jobs[0].Devices[0].Used = 96
	expect.Equal(t, update(0), "", "it was near all the time")
	m.Jobs[0].Devices[0].Used = 10
	expect.Equal(t, update(0), "")
	m.Jobs[0].Devices[0].Used = 100
	expect.Equal(t, update(0), "near-limit0/0 ")

	m.Findings = []machine.Finding{{Kind: machine.OverLimit, Device: 0, Path: job.Path}, {Kind: machine.DeviceFailed, Device: 1}, {Kind: machine.Overbooked}}
	expect.Equal(t, update(0), "gpu-failed1/0 ")
	expect.Equal(t, update(overLasts-1), "", "over its limit for a moment")
	expect.Equal(t, update(1), "over-limit0/0 ")
	m.Devices = m.Devices[:1]
	expect.Equal(t, update(2*quiet), "", "it is sent already that GPU 1 has failed")
	m.Findings, m.Devices = nil, nil
	expect.Equal(t, update(gone/2), "", "an agent that has just started")
	expect.Equal(t, update(gone), "gpu-failed0/0 ")
}

// A user with many jobs does not use up what is sent about others, and the log says what was dropped.
func TestWatcherFlood(t *testing.T) {
	var log syncBuffer
	now := time.Now()
	w := NewWatcher(slog.New(slog.NewTextHandler(&log, nil)), now)
	var events []machine.Event
	for i := range 1000 {
		events = append(events, machine.Event{Kind: machine.ProcessDied, Time: now, Path: fmt.Sprint("/eve/", i), Owner: "eve", UID: 1000})
	}
	events = append(events, machine.Event{Kind: machine.ProcessDied, Time: now, Path: "/ada", Owner: "ada", UID: 1001})
	got := w.Update(&machine.Machine{}, events, now)
	expect.True(t, len(got) == maxOfUser+1 && got[maxOfUser].User == "ada", len(got))
	w.Update(&machine.Machine{}, nil, now.Add(quiet))
	expect.True(t, strings.Contains(log.String(), "980 notifications about jobs of eve were dropped"), log.String())
	expect.Equal(t, len(w.sent), 0)
}

// However many notifications a user causes, the one that a job of that user goes around an operator's limit is sent. A
// problem that was over the bound, and lasts, is sent later.
func TestWatcherFloodThenEscape(t *testing.T) {
	now := time.Now()
	w := NewWatcher(slog.New(slog.DiscardHandler), now)
	var events []machine.Event
	m := &machine.Machine{}
	for i := range 2 * maxOfUser {
		path := fmt.Sprint("/eve/", i, "/region")
		events = append(events, machine.Event{Kind: machine.ProcessDied, Time: now, Path: path, Owner: "eve", UID: 1000})
		m.Jobs = append(m.Jobs, machine.Job{Path: path, Owner: "eve", UID: 1000})
		m.Findings = append(m.Findings, machine.Finding{Kind: machine.OverLimit, Path: path}) // over limits of the user's own
	}
	const escaped = job.RootFolder + "/user-1000/region"
	m.Jobs = append(m.Jobs, machine.Job{Path: escaped, Owner: "eve", UID: 1000})
	m.Findings = append(m.Findings, machine.Finding{Kind: machine.OverLimit, Path: escaped})
	stop := machine.Event{Kind: machine.ProcessesStopped, Time: now, Path: escaped, Owner: "eve", UID: 1000, Stop: &machine.Stop{}}
	w.Update(m, nil, now.Add(-overLasts))
	got := w.Update(m, append(events, stop), now)
	expect.Must(t, len(got) == maxOfUser+2, len(got))
	expect.True(t, got[maxOfUser].Kind == Stop && got[maxOfUser+1].Kind == OverLimit && got[maxOfUser+1].Path == escaped, got[maxOfUser:])
	expect.Equal(t, len(w.Update(m, nil, now.Add(quiet/2))), 0)
	expect.Equal(t, len(w.Update(m, nil, now.Add(quiet))), maxOfUser, "what lasts is sent in the next span")
	expect.Equal(t, len(w.Update(m, nil, now.Add(2*quiet))), maxOfUser, "so is the rest")
	expect.Equal(t, len(w.Update(m, nil, now.Add(3*quiet))), 0, "each once")
}
