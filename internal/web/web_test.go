package web

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"ration/check/expect"
	"ration/check/webtest"
	"ration/internal/node"
	"ration/machine"
)

const token = "0123456789abcdef"

// page is a page that a test serves, and a client that has its cookie.
type page struct {
	t      *testing.T
	source *webtest.Source
	url    string // of its folder
	server *httptest.Server
}

func serve(t *testing.T, m *machine.Machine, change func(*Options)) *page {
	t.Helper()
	p := &page{t: t, source: webtest.NewSource(m, node.History{})}
	opts := Options{Source: p.source, Token: token, ID: "abc", MaxStreams: 4}
	if change != nil {
		change(&opts)
	}
	handler := New(opts)
	p.server = httptest.NewServer(handler)
	t.Cleanup(p.server.Close)
	p.url = p.server.URL + "/"
	if opts.ID != "" {
		p.url += opts.ID + "/"
	}
	return p
}

// ask makes a request, as the page's own script does unless change says otherwise.
func (p *page) ask(method, path string, form url.Values, change func(*http.Request)) (int, string, http.Header) {
	p.t.Helper()
	r, err := http.NewRequest(method, p.url+path, strings.NewReader(form.Encode()))
	expect.OK(p.t, err)
	r.AddCookie(&http.Cookie{Name: cookieName, Value: token})
	if method == http.MethodPost {
		r.Header.Set("Origin", p.server.URL)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Accept", "application/json")
	}
	if change != nil {
		change(r)
	}
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute) // a stream that is not refused does not end
	defer cancel()
	answer, err := http.DefaultClient.Do(r.WithContext(ctx))
	expect.OK(p.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	expect.OK(p.t, err, path)
	return answer.StatusCode, string(text), answer.Header
}

// fill puts a text into every string that a value can hold, and one element into each slice.
func fill(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), text)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type() != reflect.TypeFor[time.Time]() {
				fill(v.Field(i), text)
			}
		}
	case reflect.Uint64, reflect.Int, reflect.Int64:
		if v.CanSet() && v.Kind() == reflect.Uint64 {
			v.SetUint(1 << 30)
		}
	}
}

// hostile is a machine in which every string is what a tenant would write to do harm.
func hostile() *machine.Machine {
	var m machine.Machine
	fill(reflect.ValueOf(&m).Elem(), webtest.Hostile)
	live, unreadable := m.Jobs[0], m.Jobs[0]
	live.Error, live.State = "", machine.Running
	live.Path += "live"
	live.Deaths[0].Time, live.Refusals[0].Time = time.Unix(0, 1), time.Unix(0, 2)
	unreadable.State = machine.Ended
	m.Jobs = []machine.Job{live, unreadable}
	m.Devices[0].Total = 4 << 30
	return &m
}

// Whatever names tenants choose, the page has no element, no attribute and no script that is not
// ours; nor has an update.
func TestHostileNames(t *testing.T) {
	p := serve(t, hostile(), func(o *Options) { o.MayChange = func(*machine.Job) bool { return true } })
	_, text, _ := p.ask("GET", "", nil, nil)
	expect.Must(t, strings.Contains(text, "&lt;script&gt;"), "the names are not on the page")
	parts := []string{text}
	for _, fragment := range p.stream("").next().Set {
		parts = append(parts, fragment)
	}
	for _, part := range parts {
		doc, err := html.Parse(strings.NewReader(part))
		expect.OK(t, err)
		for n := range doc.Descendants() {
			if n.Type != html.ElementNode {
				continue
			}
			expect.True(t, n.Data != "img" && n.Data != "b" && n.Data != "style" && (n.Data != "script" || n.FirstChild == nil),
				"there is an element", n.Data)
			for _, a := range n.Attr {
				expect.True(t, !strings.HasPrefix(a.Key, "on") && a.Key != "style" && (a.Key != "href" && a.Key != "src" || !strings.ContainsAny(a.Val, ":<")),
					n.Data, "has the attribute", a.Key, "=", a.Val)
			}
		}
	}
}

// reader reads the messages of a stream.
type reader struct {
	t     *testing.T
	body  io.Closer
	lines *bufio.Scanner
	id    string // of the latest
	size  int
}

func (p *page) stream(since string) *reader {
	p.t.Helper()
	r, err := http.NewRequest("GET", p.url+"stream", nil)
	expect.OK(p.t, err)
	r.AddCookie(&http.Cookie{Name: cookieName, Value: token})
	if since != "" {
		r.Header.Set("Last-Event-ID", since)
	}
	answer, err := http.DefaultClient.Do(r)
	expect.Must(p.t, err == nil && answer.StatusCode == http.StatusOK && answer.Header.Get("Content-Type") == "text/event-stream",
		answer, err)
	p.t.Cleanup(func() { _ = answer.Body.Close() })
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 16<<20)
	return &reader{t: p.t, body: answer.Body, lines: lines}
}

// next returns the next message.
func (r *reader) next() (u update) {
	r.t.Helper()
	for r.lines.Scan() {
		if id, is := strings.CutPrefix(r.lines.Text(), "id: "); is {
			r.id = id
		}
		if data, is := strings.CutPrefix(r.lines.Text(), "data: "); is {
			r.size = len(data)
			expect.OK(r.t, json.Unmarshal([]byte(data), &u))
			return u
		}
	}
	r.t.Fatalf("the stream has ended: %v", r.lines.Err())
	return u
}

// A change is one message, with what has changed and no more: of 200 jobs with 8 processes each,
// that of one. Who comes back gets what was missed, and who comes from another process, all.
func TestStream(t *testing.T) {
	p := serve(t, webtest.Machine(2, 200, 8), nil)
	s := p.stream("")
	first := s.next()
	expect.Must(t, len(first.Set) >= 200 && len(first.Lists["jobs"]) == 200, len(first.Set), "fragments", len(first.Lists["jobs"]), "jobs")
	whole, begin := s.size, s.id
	p.source.Change(func(m *machine.Machine) { webtest.Refuse(&m.Jobs[150], time.Now(), 9<<30) })
	u := s.next()
	for u.Set["events"] == "" { // the chart may have moved on in between
		u = s.next()
	}
	id := elementID(webtest.Machine(2, 200, 8).Jobs[150].ID())
	expect.True(t, strings.Contains(u.Set[id], "1 refusal") && strings.Contains(u.Set["events"], "asked for 9 GiB") && strings.Contains(u.Set["top"], "refusal"),
		"got", u.Set)
	others := 0
	for of := range u.Set {
		if strings.HasPrefix(of, "job-") && of != id {
			others++
		}
	}
	expect.True(t, others <= 0 && s.size <= 64<<10 && s.size <= whole/8, others, "other jobs", s.size, "of", whole, "bytes")
	t.Logf("%d bytes for all, %d for a refusal", whole, s.size)

	again := p.stream(begin)
	if u := again.next(); u.Set[id] == "" || len(u.Set) > 12 {
		t.Errorf("who missed it got %d fragments", len(u.Set))
	}
	if u := p.stream("00000000-7").next(); len(u.Set) < 200 {
		t.Errorf("who comes from another process got %d fragments", len(u.Set))
	}

	// A job that ends goes from one list to the other, and one that is gone is gone.
	p.source.Change(func(m *machine.Machine) {
		m.Jobs[150].State = machine.Ended
		m.Jobs = m.Jobs[1:]
	})
	for u = s.next(); u.Lists["jobs"] == nil; {
		u = s.next()
	}
	expect.True(t, len(u.Lists["jobs"]) == 198 && len(u.Lists["ended"]) == 1 && u.Lists["ended"][0] == id,
		len(u.Lists["jobs"]), "jobs", u.Lists["ended"], "ended")
}

// busySource has always changed.
type busySource struct {
	*webtest.Source
	drawn chan time.Time
}

func (s busySource) Latest() (*machine.Machine, []machine.Event, <-chan struct{}) {
	s.drawn <- time.Now()
	m, events, _ := s.Source.Latest()
	now := make(chan struct{})
	close(now)
	return m, events, now
}

// A machine on which something happens all the time, as one tenant can bring about, is drawn so often
// and no oftener; what it is in the end is shown.
func TestFlappingIsDrawnSteadily(t *testing.T) {
	source := busySource{webtest.NewSource(webtest.Machine(1, 2, 2), node.History{}), make(chan time.Time, 1000)} // more than there are
	h := newHub(Options{Source: source})
	h.enter()
	var first, last time.Time
	const draws = 12
	for n := range draws {
		if last = <-source.drawn; n == 0 {
			first = last
		}
	}
	source.Change(func(m *machine.Machine) { m.Jobs[0].Name = "the last" })
	for shown := false; !shown; {
		<-source.drawn
		fragments, _, _ := h.all()
		for _, html := range fragments {
			shown = shown || strings.Contains(html, "the last")
		}
	}
	h.leave()
	took := last.Sub(first)
	expect.True(t, took >= (draws-1-maxDraws)*drawTime, draws, "times within", took)
}

// No more pages stay connected than may be, and when the last has left nobody looks.
func TestStreamsAreBounded(t *testing.T) {
	p := serve(t, webtest.Machine(1, 1, 1), func(o *Options) { o.MaxStreams = 1 })
	s := p.stream("")
	s.next()
	status, text, _ := p.ask("GET", "stream", nil, nil)
	expect.Equal(t, status, http.StatusServiceUnavailable, text)
	_ = s.body.Close()
	for end := time.Now().Add(10 * time.Second); ; { // until the server has noticed
		r, _ := http.NewRequest("GET", p.url+"stream", nil)
		r.AddCookie(&http.Cookie{Name: cookieName, Value: token})
		answer, err := http.DefaultClient.Do(r)
		expect.OK(t, err)
		_ = answer.Body.Close()
		if answer.StatusCode == http.StatusOK {
			return
		}
		expect.Must(t, !time.Now().After(end), "the place is not free")
		p.source.Change(func(m *machine.Machine) { m.Devices[0].Used += 1 << 30 }) // which it cannot write
	}
}

// A job that the driver counts more for than its limit stands out, also if its own accounts are empty.
func TestOverLimit(t *testing.T) {
	m := &machine.Machine{Jobs: []machine.Job{
		{Name: "beyond", Path: "/a", State: machine.Running, Devices: []machine.Device{{Limited: true, Limit: 2 << 30, Driver: 12 << 30}}},
		{Name: "within", Path: "/b", State: machine.Running, Devices: []machine.Device{{Limited: true, Limit: 2 << 30, Driver: 2 << 30, Peak: 1}}},
	}}
	_, text, _ := serve(t, m, nil).ask(http.MethodGet, "", nil, nil)
	expect.True(t, strings.Count(text, `<span class="bad">over its limit by 10 GiB</span>`) == 1 && strings.Count(text, ` beyond"`) == 1, "got", text)
}
