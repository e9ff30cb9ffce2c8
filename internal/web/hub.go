package web

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"ration/internal/feed"
	"ration/machine"
)

const (
	// The page is drawn at most once in drawTime while the machine changes all the time. After a
	// quiet moment each of the first maxDraws changes is drawn at once. (A death is two changes:
	// the process disappears, and its memory returns to the job.)
	drawTime = 100 * time.Millisecond
	maxDraws = 5
	// maxAge is how old the content of a new page may be if no viewer follows the machine.
	maxAge = time.Second
)

// fragment is an element of the page.
type fragment struct {
	html    string
	changed uint64 // version in which it last changed
}

// list is a group of elements that are added and removed, in display order.
type list struct {
	ids     []string
	changed uint64
}

// drawnJob is a job as of the last drawing of its fragment.
type drawnJob struct {
	job       machine.Job
	style     style
	mayChange bool
}

// hub draws the machine when it changes, once for all viewers.
type hub struct {
	opts Options
	host string
	feed *feed.Feed // versions of the page

	draw    sync.Mutex // held while it reads and draws
	fresh   <-chan struct{}
	drawn   time.Time
	colours *colours
	chart   *chart
	events  *timeline
	jobs    map[string]drawnJob // by id
	devices string              // the devices of the last drawing, which map the jobs' own numbers
	// delegates has the user of each delegated UID, and "" for other UIDs.
	delegates map[int]string

	mu        sync.Mutex
	fragments map[string]fragment // by id; mu guards this and everything below
	lists     map[string]list     // by id
	viewers   int
	stop      context.CancelFunc // stops following the machine
}

func newHub(opts Options) *hub {
	return &hub{opts: opts, host: cmp.Or(opts.Host, hostName()), feed: feed.New(), colours: newColours(), chart: newChart(), events: &timeline{}, jobs: map[string]drawnJob{}, delegates: map[int]string{},
		fragments: map[string]fragment{}, lists: map[string]list{}}
}

// enter starts following the machine, for the first viewer.
func (h *hub) enter() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers++; h.viewers == 1 {
		ctx, stop := context.WithCancel(context.Background())
		h.stop = stop
		go h.follow(ctx)
	}
}

func (h *hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers--; h.viewers == 0 {
		h.stop()
	}
}

// follow draws the machine whenever it changes, and whenever the chart needs a new sample.
func (h *hub) follow(ctx context.Context) {
	draws := rate.NewLimiter(rate.Every(drawTime), maxDraws)
	for draws.Wait(ctx) == nil {
		fresh := h.refresh()
		select {
		case <-ctx.Done():
			return
		case <-fresh:
		case <-time.After(time.Until(h.chart.due(time.Now()))):
		}
	}
}

// refresh draws the changes, and returns a channel that is closed at the next change.
func (h *hub) refresh() <-chan struct{} {
	h.draw.Lock()
	defer h.draw.Unlock()
	now := time.Now()
	if h.fresh != nil && now.Sub(h.drawn) < maxAge && !h.chart.isDue(now) {
		select {
		case <-h.fresh:
		default:
			return h.fresh
		}
	}
	m, events, fresh := h.opts.Source.Latest()
	clear(h.delegates)
	h.fresh, h.drawn = fresh, now
	if h.chart.stale(now) {
		if past, err := h.opts.Source.History(); err == nil {
			h.seedChart(m, past)
		}
	}
	h.addSample(m, now)
	h.events.set(events)
	h.publish(h.view(m, now))
	return h.fresh
}

// publish makes a new version of the page, if any fragment or list has changed. A fragment that is
// in no list and not in fragments stays unchanged.
func (h *hub) publish(fragments map[string]string, lists map[string][]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	version, _ := h.feed.Latest()
	version++
	changed := false
	for id, html := range fragments {
		if h.fragments[id].html != html {
			h.fragments[id] = fragment{html, version}
			changed = true
		}
	}
	kept := map[string]bool{}
	for id, ids := range lists {
		if l, known := h.lists[id]; !known || !slices.Equal(l.ids, ids) {
			h.lists[id] = list{ids, version}
			changed = true
		}
	}
	if lists != nil {
		for _, l := range h.lists {
			for _, id := range l.ids {
				kept[id] = true
			}
		}
		for id := range h.fragments {
			if _, given := fragments[id]; !given && !kept[id] {
				delete(h.fragments, id)
			}
		}
	}
	if changed {
		h.feed.Advance()
	}
}

// update has the changes for a client.
type update struct {
	Set   map[string]string   `json:"set,omitempty"`   // elements by id
	Lists map[string][]string `json:"lists,omitempty"` // ids of the elements of each list
}

// since returns the changes after a version, the current version, and a channel that is closed at
// the next version.
func (h *hub) since(version uint64) (out update, now uint64, next <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out = update{Set: map[string]string{}, Lists: map[string][]string{}}
	for id, f := range h.fragments {
		if f.changed > version {
			out.Set[id] = f.html
		}
	}
	for id, l := range h.lists {
		if l.changed > version {
			out.Lists[id] = l.ids
		}
	}
	now, next = h.feed.Latest()
	return out, now, next
}

// all returns the fragments and lists of the current version, for a whole page.
func (h *hub) all() (fragments map[string]string, lists map[string][]string, version uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fragments, lists = map[string]string{}, map[string][]string{}
	for id, f := range h.fragments {
		fragments[id] = f.html
	}
	for id, l := range h.lists {
		lists[id] = l.ids
	}
	version, _ = h.feed.Latest()
	return fragments, lists, version
}

// render executes a template. It can only fail because of a mistake in the template, which every
// test would find.
func render(name string, data any) string {
	var out bytes.Buffer
	if err := templates().ExecuteTemplate(&out, name, data); err != nil {
		panic(fmt.Sprintf("template %s: %v", name, err))
	}
	return strings.TrimSpace(out.String())
}

// same reports whether a job would be drawn the same again.
func (d *drawnJob) same(j *machine.Job, of style, mayChange bool) bool {
	if d.style != of || d.mayChange != mayChange {
		return false
	}
	return j.Same(&d.job)
}
