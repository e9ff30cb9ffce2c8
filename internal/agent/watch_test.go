package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/connlimit"
	"ration/internal/job"
	"ration/machine"
)

// Everybody may know the devices and what is wrong with them, and no name that a user has chosen.
func TestPublic(t *testing.T) {
	m := &machine.Machine{Folder: "secret", Devices: []machine.GPU{{Rations: 5}},
		Jobs:    []machine.Job{{Name: "secret", Path: "a", Owner: "secret", Command: []string{"secret"}}, {Path: "secret", UID: -1}},
		Outside: []machine.Outside{{PID: 2, UID: -1, Name: "secret"}},
		Findings: []machine.Finding{{Kind: machine.Overbooked, Text: "overbooked"}, {Kind: machine.DriverSilent, Text: "silent"}, {Kind: machine.Drift, Path: "a", Text: "secret"},
			{Kind: machine.OutsideJobs, Text: "secret"}, {Kind: machine.Unanswering, Text: "secret"}, {Kind: machine.Unreadable, Text: "secret"}}}
	got := Public(m)
	text := fmt.Sprintf("%+v", got)
	expect.True(t, !strings.Contains(text, "secret") && len(got.Findings) == 2 && len(got.Devices) == 1, text)
}

// The page at the port has no job in it, and the rest of what the socket serves is not there.
func TestPublicPage(t *testing.T) {
	testFolder(t)
	a := startAgent(t, Options{JobMetrics: true})
	holder(t, "secretjob")
	a.scanner.Hint(job.Folder())
	a.Wake() // it is there, whatever the agent has heard of it
	a.await(t, machine.RequestRefused, 1)
	source := publicSource{a}
	m, events, _ := source.Latest()
	h, err := source.History()
	expect.True(t, err == nil && len(a.Machine().Jobs) == 1 && len(m.Jobs)+len(m.Outside)+len(h.Jobs)+len(events) == 0, m, events, h, err)
	s := httptest.NewServer(a.publicHandler(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))
	defer s.Close()
	get := func(path, host string) (int, string) {
		r, err := http.NewRequest("GET", s.URL+path, nil)
		expect.OK(t, err)
		r.Host = host
		answer, err := http.DefaultClient.Do(r)
		expect.OK(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		expect.OK(t, err)
		return answer.StatusCode, string(text)
	}
	if status, text := get("/", "localhost"); status != http.StatusOK || !strings.Contains(text, "what everybody may know") || strings.Contains(text, "secretjob") || strings.Contains(text, "asked for") {
		t.Errorf("got %d %s", status, text)
	}
	for _, path := range []string{"/v1/machine", "/v1/events", "/v1/history", "/v1/watch", "/limit"} {
		status, text := get(path, "localhost")
		expect.True(t, status == http.StatusNotFound && !strings.Contains(text, "secretjob"), path, status)
	}
	for _, path := range []string{"/", "/metrics"} {
		status, text := get(path, "evil.example")
		expect.True(t, status == http.StatusForbidden && len(text) < 100, path, "by another name", status)
		status, _ = get(path, "127.0.0.1:9410")
		expect.Equal(t, status, http.StatusOK, path)
		// At an address that other machines can reach, Prometheus may use any name.
		answer := httptest.NewRecorder()
		a.publicHandler(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}).ServeHTTP(answer, httptest.NewRequest("GET", "http://gpu1.example"+path, nil))
		expect.Equal(t, answer.Code, http.StatusOK, path, "at a public address")
	}
	for address, is := range map[string]bool{"127.0.0.1": true, "::1": true, "0.0.0.0": false, "192.0.2.1": false} {
		expect.Equal(t, isLoopback(&net.TCPAddr{IP: net.ParseIP(address)}), is, address)
	}
}

// Listen claims a folder and returns the claim's parts.
func Listen(folder string) (l net.Listener, release func(), err error) {
	c, err := ClaimFolder(folder)
	if err != nil {
		return nil, nil, err
	}
	return c.Listener(), c.Release, nil
}

// serveAgent has an agent answer at the socket of a folder, until stop. served has how that ended.
func serveAgent(t *testing.T, a *Agent, folder string) (stop context.CancelFunc, served <-chan error) {
	t.Helper()
	socket, release, err := Listen(folder)
	expect.OK(t, err)
	t.Cleanup(release)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Serve(ctx, socket) }()
	return stop, ended
}

// Those who ask for metrics at the port, and do not read them, keep out nobody else: not the one who
// collects them, above all.
func TestMetricsForSlowReaders(t *testing.T) {
	testFolder(t)
	a := startAgent(t, Options{Version: "0.3.0"})
	pipes := webtest.NewPipes()
	server := &http.Server{Handler: a.publicHandler(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})}
	connlimit.Attach(server)
	defer server.Close()
	go func() { _ = server.Serve(connlimit.NewEvicting(pipes, 3)) }()
	for n := range 9 {
		c, err := pipes.Unread("/metrics")
		expect.OK(t, err, "reader", n, "was kept out")
		defer c.Close()
	}
}

// Every user can have the port before the agent. That costs the machine what is served there, and nothing
// else, until the port is free.
func TestPortIsTaken(t *testing.T) {
	folder := testFolder(t)
	before := portAgain
	portAgain = time.Millisecond
	defer func() { portAgain = before }()
	squatter, err := net.Listen("tcp", "127.0.0.1:0")
	expect.OK(t, err)
	a := startAgent(t, Options{Listen: squatter.Addr().String()})
	stop, ended := serveAgent(t, a, folder)
	c, err := Find()
	expect.OK(t, err)
	if _, err := c.Machine(); err != nil {
		t.Fatalf("without the port there is no agent: %v", err)
	}
	_ = squatter.Close()
	for {
		select {
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		default:
		}
		if answer, err := http.Get("http://" + a.opts.Listen + "/metrics"); err == nil {
			_ = answer.Body.Close()
			break
		}
	}
	stop()
	expect.Equal(t, <-ended, nil, "it ended with")
	// And where it never has it.
	portAgain = time.Hour
	over, end := context.WithCancel(context.Background())
	end()
	server := &http.Server{}
	expect.Equal(t, a.servePublic(over, server, nil), nil)
}
