// Package fleet reads many machines, each over the stream of its ration web, for one page about all of them.
//
//	operator's list ──▶ Targets ──▶ a goroutine for each machine: connect, read lines, summarise
//	                                     └──▶ Fleet: the latest summary of each ──▶ page, JSON
//
// Any machine of a fleet may be in the hands of a tenant, and send anything. So its name on the page is from
// the operator's list; its certificate is checked; what it sends is bounded in size, in rate and in time, and
// summarised before it is kept; and it is read by a goroutine that no other machine waits for. It can lie
// about itself, and about nothing else.
package fleet

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// Values of Machine.State.
const (
	Connecting  = "connecting"  // it has not answered yet
	Up          = "up"          // its stream is open
	Unreachable = "unreachable" // it does not answer, or not as it should
)

// Machine is a machine of the fleet, as it was when it last answered.
type Machine struct {
	Name    string    `json:"machine"` // as the operator's list or DNS names it
	URL     string    `json:"url"`     // of its page
	State   string    `json:"state"`   // up, unreachable or connecting
	Since   time.Time `json:"since"`   // since when it is in that state
	Reason  string    `json:"reason,omitempty"`
	Seen    time.Time `json:"seen_at,omitzero"` // when it last answered; the fields below are of then
	Version string    `json:"version,omitempty"`
	GPUs    []GPU     `json:"gpus"`
	Users   []User    `json:"users"` // what each holds on all its GPUs, by name
	// Problems are its findings, the worst first, as `ration ps` has them there; at most eight.
	Problems []Problem `json:"problems"`
	More     int       `json:"more_problems,omitempty"` // further findings
	Jobs     int       `json:"jobs"`                    // that have not ended
}

// GPU is a device of a machine. Sizes are bytes.
type GPU struct {
	Device  int    `json:"device"`
	Name    string `json:"name"`
	Total   uint64 `json:"total"`
	Used    uint64 `json:"used"`    // by all processes and by the driver itself
	Rations uint64 `json:"rations"` // sum of the limits
	Users   []User `json:"users"`   // by name
}

// User is what a user holds.
type User struct {
	Name    string `json:"user"`
	Used    uint64 `json:"used"`    // in jobs
	Limit   uint64 `json:"limit"`   // sum of the limits
	Outside uint64 `json:"outside"` // in no job
}

// Problem is a finding of a machine.
type Problem struct {
	Kind   string `json:"kind"`
	Device int    `json:"device"` // -1 if it is about no particular device
	Text   string `json:"text"`
}

// State is all machines at one time. It is never modified.
type State struct {
	Machines []*Machine `json:"machines"`        // by name
	Notes    []string   `json:"notes,omitempty"` // what is wrong with the list of machines
}

// Options say what to read, and how.
type Options struct {
	List  *List
	Token string // file with the token of the machines that have none of their own
	CA    string // file with the certificates of authorities; empty for the system's
}

// Fleet follows the machines of a list.
type Fleet struct {
	opts   Options
	client *client
	feed   *Feed
	first  chan struct{} // closed when the list was read for the first time

	mu       sync.Mutex
	machines map[string]*followed // guarded by mu; by name
	notes    []string             // guarded by mu
}

// followed is a machine that a goroutine reads.
type followed struct {
	target Target
	stop   context.CancelFunc
	now    *Machine // never modified
}

// listInterval is how often the list is read again: its files, and DNS.
const listInterval = 30 * time.Second

// connectTime is the mean time between two first connections, so that a thousand handshakes at once do not keep the
// page waiting.
const connectTime = 5 * time.Millisecond

// New returns a Fleet that is not yet followed.
func New(opts Options) (*Fleet, error) {
	c, err := newClient(opts)
	if err != nil {
		return nil, err
	}
	return &Fleet{opts: opts, client: c, feed: NewFeed(), first: make(chan struct{}), machines: map[string]*followed{}}, nil
}

// Run follows the machines until the context ends.
func (f *Fleet) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	again := time.NewTicker(listInterval)
	defer again.Stop()
	for {
		targets, problems := f.opts.List.Targets(ctx)
		f.set(ctx, &all, targets, problems)
		select {
		case <-f.first:
		default:
			close(f.first)
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// Listed returns a channel that is closed when the list of machines has been read.
func (f *Fleet) Listed() <-chan struct{} { return f.first }

// set starts to follow the machines that are new in the list, and drops those that are gone.
func (f *Fleet) set(ctx context.Context, all *sync.WaitGroup, targets []Target, problems []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	listed := map[string]bool{}
	changed, fresh := false, []func(){}
	for _, t := range targets {
		listed[t.Name] = true
		if m := f.machines[t.Name]; m != nil && m.target == t {
			continue
		} else if m != nil {
			m.stop()
		}
		ctx, stop := context.WithCancel(ctx)
		m := &followed{t, stop, &Machine{Name: t.Name, URL: t.URL(), State: Connecting, Since: time.Now().UTC(), GPUs: []GPU{}, Users: []User{}, Problems: []Problem{}}}
		f.machines[t.Name] = m
		changed = true
		fresh = append(fresh, func() {
			select {
			case <-ctx.Done():
			case <-time.After(rand.N(time.Duration(1+len(fresh)) * connectTime)):
				f.follow(ctx, m)
			}
		})
	}
	for _, start := range fresh {
		all.Go(start)
	}
	for name, m := range f.machines {
		if !listed[name] {
			m.stop()
			delete(f.machines, name)
			changed = true
		}
	}
	notes := []string{}
	for _, p := range problems {
		for line := range strings.Lines(p.Error()) {
			notes = append(notes, clean(line, maxText))
		}
	}
	if changed || !slices.Equal(notes, f.notes) {
		f.notes = notes
		f.feed.Advance()
	}
}

// update replaces the state of a machine, unless another goroutine follows that name by now.
func (f *Fleet) update(m *followed, change func(next *Machine)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.machines[m.target.Name] != m {
		return
	}
	next := *m.now
	change(&next)
	m.now = &next
	f.feed.Advance()
}

// Latest returns the machines, and a channel that is closed at the next change.
func (f *Fleet) Latest() (*State, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, next := f.feed.Latest()
	s := &State{Machines: make([]*Machine, 0, len(f.machines)), Notes: f.notes}
	for _, m := range f.machines {
		s.Machines = append(s.Machines, m.now)
	}
	slices.SortFunc(s.Machines, func(a, b *Machine) int { return Compare(a.Name, b.Name) })
	return s, next
}

// Urgent is the urgency above which a machine needs an operator at once.
const Urgent = 1

// Urgency is how urgent the worst trouble of a machine is; 0 for none. A machine that does not answer comes before one
// with a failed GPU, and that before one with a job over its limit.
func Urgency(m *Machine) int {
	const unreachable = 10
	switch {
	case m.State == Unreachable:
		return unreachable
	case len(m.Problems) > 0:
		return severity(m.Problems[0].Kind)
	}
	return 0
}

// ByUrgency returns the machines with the most urgent first, and by name.
func (s *State) ByUrgency() []*Machine {
	out := slices.Clone(s.Machines)
	slices.SortStableFunc(out, func(a, b *Machine) int { return Urgency(b) - Urgency(a) })
	return out
}

// Compare orders names as people count: node2 comes before node10.
func Compare(a, b string) int {
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		if !digit(a[i]) || !digit(b[j]) {
			if a[i] != b[j] {
				return cmp.Compare(a[i], b[j])
			}
			i, j = i+1, j+1
			continue
		}
		x, y := i, j
		for i < len(a) && digit(a[i]) {
			i++
		}
		for j < len(b) && digit(b[j]) {
			j++
		}
		m, n := strings.TrimLeft(a[x:i], "0"), strings.TrimLeft(b[y:j], "0")
		if c := cmp.Or(cmp.Compare(len(m), len(n)), strings.Compare(m, n)); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(len(a)-i, len(b)-j), strings.Compare(a, b))
}
