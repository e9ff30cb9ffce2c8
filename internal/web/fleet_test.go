package web

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/fleet"
	"ration/machine"
)

// madeUpFleet is machines that a test changes.
type madeUpFleet struct {
	mu    sync.Mutex
	state fleet.State
	feed  *fleet.Feed
}

func (f *madeUpFleet) Latest() (*fleet.State, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, next := f.feed.Latest()
	s := f.state
	s.Machines = slices.Clone(s.Machines)
	return &s, next
}

// change replaces a machine by a changed copy.
func (f *madeUpFleet) change(n int, change func(m *fleet.Machine)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := *f.state.Machines[n]
	m.GPUs = slices.Clone(m.GPUs)
	change(&m)
	f.state.Machines[n] = &m
	f.feed.Advance()
}

// machines returns a fleet of machines with a GPU each, of which a user holds a half.
func machines(count int) *madeUpFleet {
	f := &madeUpFleet{feed: fleet.NewFeed()}
	for n := range count {
		users := []fleet.User{{Name: webtest.User(n % 3), Used: 50 << 30, Limit: 60 << 30}}
		f.state.Machines = append(f.state.Machines, &fleet.Machine{Name: fmt.Sprint("node", n), URL: fmt.Sprintf("https://node%d:9411/", n), State: fleet.Up, Since: time.Unix(1e9, 0), Seen: time.Unix(1e9, 0),
			GPUs: []fleet.GPU{{Device: 0, Total: 100 << 30, Used: 51 << 30, Users: users}}, Users: users, Problems: []fleet.Problem{}})
	}
	return f
}

func fleetOf(source FleetSource) (*fleetHub, *httptest.Server) {
	s := httptest.NewServer(NewFleet(source, Options{Version: "0", Token: token, MaxStreams: 2}))
	h := &fleetHub{source: source, colours: newColours(), drawn: map[string]drawnMachine{}}
	h.board = newBoard(h.follow)
	return h, s
}

// askFleet sends a request with the token.
func askFleet(t *testing.T, s *httptest.Server, method, path string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, s.URL+path, nil)
	expect.OK(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	expect.OK(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	expect.OK(t, err)
	return answer.StatusCode, string(text)
}

// Machines in trouble come first: those that do not answer, then failed GPUs, then jobs over their limits.
func TestFleetOrder(t *testing.T) {
	f := machines(12)
	problem := func(kind string) func(*fleet.Machine) {
		return func(m *fleet.Machine) { m.Problems = []fleet.Problem{{Kind: kind, Text: "a finding of " + kind}} }
	}
	f.change(3, problem(machine.OutsideJobs))
	f.change(5, problem(machine.OverLimit))
	f.change(7, problem(machine.DeviceFailed))
	f.change(9, func(m *fleet.Machine) {
		m.State, m.Reason, m.Since = fleet.Unreachable, "it does not answer", time.Unix(1e9, 0)
	})
	h, s := fleetOf(f)
	defer s.Close()
	h.refresh()
	_, lists, _ := h.all()
	var want []string
	for _, n := range []int{9, 7, 5, 3, 0, 1, 2, 4, 6, 8, 10, 11} {
		want = append(want, machineID(fmt.Sprint("node", n)))
	}
	expect.True(t, slices.Equal(lists["machines"], want), lists["machines"])
	_, page := askFleet(t, s, "GET", "/")
	for _, text := range []string{"2001-09-09T01:46:40Z", "it does not answer", "a finding of over-limit", `href="https://node9:9411/"`, `data-of="alice"`, `<dd>12</dd>`} {
		expect.True(t, strings.Contains(page, text), "the page does not have", text)
	}
}

// Only machines that look different are drawn again.
func TestFleetDrawsChanges(t *testing.T) {
	f := machines(1000)
	h, s := fleetOf(f)
	defer s.Close()
	h.refresh()
	all, version, _ := h.since(0)
	expect.True(t, len(all.Set) == 1004 && len(all.Lists["machines"]) == 1000, len(all.Set))
	for n := range 1000 {
		f.change(n, func(m *fleet.Machine) { m.Seen, m.GPUs[0].Used = m.Seen.Add(time.Second), m.GPUs[0].Used+1 }) // a byte
	}
	h.refresh()
	none, version, _ := h.since(version)
	expect.True(t, len(none.Set)+len(none.Lists) == 0, "drawn again:", len(none.Set))
	f.change(7, func(m *fleet.Machine) { m.GPUs[0].Used = 80 << 30 })
	h.refresh()
	one, _, _ := h.since(version)
	expect.True(t, len(one.Set) == 1 && one.Set[machineID("node7")] != "" && len(one.Lists) == 0, one)
}

// The page changes nothing, gives nothing without the token, and has the same as JSON.
func TestFleetAccess(t *testing.T) {
	f := machines(3)
	_, s := fleetOf(f)
	defer s.Close()
	for _, path := range []string{"/", "/stream", "/v1/fleet"} {
		answer, err := http.Get(s.URL + path)
		expect.OK(t, err)
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		expect.True(t, answer.StatusCode == http.StatusForbidden && !strings.Contains(string(text), "node1"), path, answer.StatusCode, string(text))
		status, _ := askFleet(t, s, "POST", path)
		expect.True(t, status == http.StatusMethodNotAllowed || status == http.StatusForbidden, path, status)
	}
	status, text := askFleet(t, s, "GET", "/v1/fleet")
	var got fleet.State
	expect.OK(t, json.Unmarshal([]byte(text), &got))
	expect.True(t, status == http.StatusOK && len(got.Machines) == 3 && got.Machines[1].Users[0].Name == "bob", text)
}

// What a machine says is text on the page, and nothing else.
func TestFleetHostileNames(t *testing.T) {
	f := machines(1)
	f.change(0, func(m *fleet.Machine) {
		m.Users[0].Name, m.GPUs[0].Users[0].Name, m.GPUs[0].Name, m.Version = webtest.Hostile, webtest.Hostile, webtest.Hostile, webtest.Hostile
		m.Problems = []fleet.Problem{{Kind: webtest.Hostile, Text: webtest.Hostile}}
		m.State, m.Reason = fleet.Unreachable, webtest.Hostile
	})
	f.state.Notes = []string{webtest.Hostile}
	_, s := fleetOf(f)
	defer s.Close()
	for _, state := range []string{fleet.Unreachable, fleet.Up} {
		f.change(0, func(m *fleet.Machine) { m.State = state })
		_, page := askFleet(t, s, "GET", "/")
		expect.True(t, !strings.Contains(page, "<script>doc") && !strings.Contains(page, "<img") && strings.Contains(page, "&lt;script&gt;"), page)
	}
}

// A machine that names many users, with much memory, takes no colour of users whom several machines name.
func TestFleetColours(t *testing.T) {
	f := machines(9)
	f.change(0, func(m *fleet.Machine) {
		m.Users = nil
		for n := range 200 {
			m.Users = append(m.Users, fleet.User{Name: fmt.Sprint("fake", n), Used: 4 << 40})
		}
	})
	h, s := fleetOf(f)
	defer s.Close()
	h.refresh()
	for n := range 3 {
		expect.True(t, h.colours.style(webtest.User(n)) != grey, webtest.User(n), "is grey")
	}
}

// A script sends the token in a header. Another token in it gives nothing.
func TestBearer(t *testing.T) {
	_, s := fleetOf(machines(1))
	defer s.Close()
	for bearer, want := range map[string]int{"Bearer " + token: http.StatusOK, "Bearer x" + token: http.StatusForbidden, "Bearer ": http.StatusForbidden, token: http.StatusForbidden, "Basic " + token: http.StatusForbidden} {
		r, err := http.NewRequest("GET", s.URL+"/v1/fleet", nil)
		expect.OK(t, err)
		r.Header.Set("Authorization", bearer)
		answer, err := http.DefaultClient.Do(r)
		expect.OK(t, err)
		expect.OK(t, answer.Body.Close())
		expect.Equal(t, answer.StatusCode, want, bearer)
	}
}

// A page over TLS asks for its token, and its cookie is never sent unencrypted.
func TestLogin(t *testing.T) {
	s := httptest.NewServer(NewFleet(machines(1), Options{Token: token, MaxStreams: 1, TLS: true}))
	defer s.Close()
	for path, want := range map[string]string{"/": `name="token"`, "/?token=x" + token: `name="token"`, "/?token=" + token: "node0"} {
		answer, err := http.Get(s.URL + path)
		expect.OK(t, err)
		text, err := io.ReadAll(answer.Body)
		expect.OK(t, err)
		expect.OK(t, answer.Body.Close())
		in := want == "node0"
		expect.True(t, strings.Contains(string(text), want) && (answer.StatusCode == http.StatusOK) == in && (in || !strings.Contains(string(text), "node0")), path, string(text))
		expect.True(t, (len(answer.Cookies()) == 1 && answer.Cookies()[0].Secure) == in, path, answer.Cookies())
	}
}
