package web

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

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

// drawnJob is a job as of the last drawing of its fragment.
type drawnJob struct {
	job       machine.Job
	style     style
	mayChange bool
	denied    uint64 // as node.DeniedTo
}

// hub draws the machine when it changes, once for all viewers.
type hub struct {
	*board
	opts Options
	host string

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
}

func newHub(opts Options) *hub {
	h := &hub{opts: opts, host: cmp.Or(opts.Host, hostName()), colours: newColours(), chart: newChart(), events: &timeline{}, jobs: map[string]drawnJob{}, delegates: map[int]string{}}
	h.board = newBoard(h.follow)
	return h
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
func (d *drawnJob) same(j *machine.Job, of style, mayChange bool, denied uint64) bool {
	if d.style != of || d.mayChange != mayChange || d.denied != denied {
		return false
	}
	return j.Same(&d.job)
}
