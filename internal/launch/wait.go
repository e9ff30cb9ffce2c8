package launch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
	"ration/machine"
)

// ErrNoRoom is returned if the devices had no room for the job's limits in the time of Plan.Wait.
var ErrNoRoom = errors.New("no room")

// ErrCannotWait is returned for a plan that has nothing to wait for.
var ErrCannotWait = errors.New("--wait cannot be used")

// Wait is how a command waits for room on the devices, instead of sharing them with more limits than
// they have memory for.
type Wait struct {
	Most time.Duration // how long; 0 for any time; negative: not at all
	Tell func(string)  // called with a sentence when the place in the queue changes
	// Sleep puts a job of this user to sleep if it is not used. Nil: no job is put to sleep to make room.
	Sleep func(*machine.Job) error
	// Idle returns the users without programs whose ration TakeBack can take back to make room. Nil: none is taken back.
	Idle     func() []int
	TakeBack func(uid int) error
}

// atStep is called at steps of waiting, for tests that stop the process there.
var atStep = func(string) {}

// OnStep sets the function that is called at each step of waiting.
func OnStep(f func(step string)) { atStep = f }

// Intervals of a process that waits.
const (
	tellEvery = time.Second // how often a changed place in the queue is shown
	// How often the driver is asked while other programs than jobs hold the room: nothing tells of their end.
	askFirst, askLast = 100 * time.Millisecond, 2 * time.Second
	// How often the policy's service is asked in the end whether there is room in the user's ration.
	askService = 500 * time.Millisecond
	// How often jobs are read that cannot be waited for: jobs of ration create that another user may remove.
	readAgain = 5 * time.Second
)

// checkWait returns an error for a plan that cannot wait.
func (p Plan) checkWait() error {
	switch {
	case p.Wait == nil:
		return nil
	case job.Ruled() && !p.Settings.Memory.IsSet():
		return cannotWait("the command is in your job, whose ration the policy gives (leave it out, or add a limit, as --mem 10g)")
	case p.FakeGPU != "":
		return cannotWait("a stand-in machine is the job's own, and has room (leave it out)")
	case p.Name != "" && !p.Join:
		return job.CheckUnused(p.Name) // at once, and not after an hour in the queue
	}
	return nil
}

func cannotWait(why string) error { return fmt.Errorf("%w: %s", ErrCannotWait, why) }

// waitForRoom returns when this command is the first of those that wait, and the devices have room for the
// limits. roomy are the devices that have it. The caller leaves the queue after it has made the job. A command that joins a job in
// use needs no room: then there is no ticket.
func (p Plan) waitForRoom(limits region.Limits, driver *gpu.Driver, missing error) (t *job.Ticket, roomy region.Place, err error) {
	wants, err := p.wants(limits, driver, missing)
	if err != nil {
		return nil, 0, err
	}
	name := p.Name
	if name == "" {
		name = defaultName(p.Command[0])
	}
	w := p.newWaiter(wants, driver)
	if p.Join && job.CheckUnused(name) != nil {
		return nil, anywhere, nil
	}
	t, err = w.enter(job.Waiting{Job: name, Wants: w.shown(), Joins: p.Join}, "starting")
	return t, w.roomy, err
}

// Room returns when this process is the first of those that wait, and all devices have room for what a job that sleeps
// wants. The caller leaves the queue when the job counts. wants is asked again at each look: another process may have
// woken the job, it may have ended, and its limits may have changed. If it wants nothing, there is no ticket.
func (wait Wait) Room(j job.Job, wants func() (map[int]uint64, error)) (*job.Ticket, error) {
	now, err := wants()
	if err != nil || len(now) == 0 {
		return nil, err
	}
	w := wait.newWaiter(now, 0)
	w.wakes, w.ask = j, wants
	return w.enter(job.Waiting{Job: j.Name, Wants: now, Wakes: true}, "waking "+j.Name)
}

// errNothing ends the wait for a job that wants no room any more.
var errNothing = errors.New("no room is needed")

// refresh finds out what a job that sleeps wants now.
func (w *waiter) refresh() error {
	if w.ask == nil {
		return nil
	}
	wants, err := w.ask()
	if err == nil && len(wants) == 0 {
		err = errNothing
	}
	if err == nil {
		w.wants = wants
	}
	return err
}

// enter returns when this process is the first in the queue, and there is room. then is said after a wait.
func (w *waiter) enter(q job.Waiting, then string) (*job.Ticket, error) {
	t, err := job.Enqueue(q)
	if err != nil {
		return nil, err
	}
	if !q.Joins && !q.Wakes {
		err = job.CheckUnused(q.Job) // again: from now on no other command gets the name
	}
	if err != nil {
		t.Leave()
		return nil, err
	}
	if w.atOnce {
		err = w.now(t)
	} else if err = w.untilFirst(t); err == nil && (!q.Joins || job.CheckUnused(q.Job) == nil) {
		err = w.untilRoom()
	}
	if err != nil {
		t.Leave()
		if errors.Is(err, errNothing) {
			err = nil
		}
		return nil, err
	}
	if w.announced {
		w.tell(fmt.Sprintf("there is room for %s after %s: %s", humanfmt.OnGPUs(w.shown()), humanfmt.Span(time.Since(w.began)), then))
	}
	return t, nil
}

// now returns an error unless this process is the first, and there is room.
func (w *waiter) now(t *job.Ticket) error {
	if ahead := t.Ahead(); ahead > 0 {
		return fmt.Errorf("%w for %s: %s for it", ErrNoRoom, humanfmt.OnGPUs(w.wants), humanfmt.Plural(ahead, "command waits", "commands wait"))
	}
	m, err := machine.Read()
	if err != nil {
		return fmt.Errorf("looking for room: %w", err)
	}
	if short, _ := w.short(&m); len(short) > 0 {
		return fmt.Errorf("%w for %s%s", ErrNoRoom, humanfmt.OnGPUs(w.wants), w.holdersText(&m))
	}
	return nil
}

// wants returns the bytes to wait for on each device. It is an error if a device can never have them.
func (p Plan) wants(limits region.Limits, driver *gpu.Driver, missing error) (map[int]uint64, error) {
	switch {
	case driver == nil:
		return nil, fmt.Errorf("waiting for room: %w", missing)
	case hasMIG(driver):
		return nil, cannotWait("the room on MIG instances is not known (leave it out)")
	}
	list, listed := os.LookupEnv(visibleDevices)
	listed = listed && !job.Ruled() // it numbers the devices of the user's ration, and a run has its part of each
	out := map[int]uint64{}
	for i, l := range limits.Memory {
		bytes := abi.Limit(l).Bytes()
		if !abi.Limit(l).Limited() || bytes == 0 {
			continue
		}
		if i >= len(driver.Devices) || listed && !DevicesIn(list, driver.Devices, region.Limits{}.Visible()).Has(i) {
			continue
		}
		if usable := uint64(driver.Devices[i].Usable()); bytes > usable {
			most := limit.Size(usable >> 20 << 20)
			return nil, p.memoryError(fmt.Errorf("device %d has room for %s at most, also when it is empty", i, most), fmt.Sprintf("at most %s to wait for it", most.Exact()))
		}
		out[i] = bytes
	}
	if len(out) == 0 && listed {
		return nil, cannotWait("the command has no memory of the devices in CUDA_VISIBLE_DEVICES=" + list + " (leave it out, or name others)")
	}
	if len(out) == 0 {
		return nil, cannotWait("without a limit no room is needed (add one, as --mem 10g)")
	}
	return out, nil
}

// waiter waits for room, in the queue.
type waiter struct {
	wants     map[int]uint64 // bytes by device
	devices   int            // on how many of these devices; 0 for all
	tell      func(string)
	began     time.Time
	most      time.Duration    // how long to wait; 0 for any time
	expired   <-chan time.Time // nil without a time limit
	atOnce    bool             // do not wait
	announced bool
	roomy     region.Place                // the devices with room, at the last look
	service   service                     // of the policy
	sleep     func(*machine.Job) error    // Wait.Sleep
	idle      func() []int                // Wait.Idle, and
	takeBack  func(int) error             // Wait.TakeBack
	refused   map[machine.JobID]time.Time // jobs that could not sleep, and until when they are left alone

	wakes job.Job                        // the job that sleeps, for Wait.Room, and
	ask   func() (map[int]uint64, error) // what it wants
}

func (p Plan) newWaiter(wants map[int]uint64, driver *gpu.Driver) *waiter {
	return p.Wait.newWaiter(wants, p.devicesOf(driver))
}

func (wait Wait) newWaiter(wants map[int]uint64, devices int) *waiter {
	w := &waiter{wants: wants, devices: devices, tell: wait.Tell, sleep: wait.Sleep, idle: wait.Idle, takeBack: wait.TakeBack, roomy: anywhere, began: time.Now(), atOnce: wait.Most < 0}
	if wait.Most > 0 {
		w.most, w.expired = wait.Most, time.After(wait.Most)
	}
	return w
}

// devicesOf returns on how many devices of the driver the job will be, or 0 for all.
func (p Plan) devicesOf(driver *gpu.Driver) int {
	if n := int(p.Settings.Devices); p.Settings.Devices.IsSet() && p.Settings.Devices != limit.AllDevices && n < len(driver.Devices) {
		return n
	}
	return 0
}

// shown returns what the command waits for, as it is shown: with a number of devices, that many of any.
func (w *waiter) shown() map[int]uint64 {
	if w.devices == 0 {
		return w.wants
	}
	most := slices.Max(slices.Collect(maps.Values(w.wants)))
	return map[int]uint64{-w.devices: most}
}

// enqueue gives a run a place in the user's queue.
func (p Plan) enqueue(w *waiter) (*job.Ticket, error) {
	return job.Enqueue(job.Waiting{Job: p.Name, Wants: w.shown(), Joins: p.Join, Run: true})
}

// untilFirst returns when no command that began to wait earlier still waits.
func (w *waiter) untilFirst(t *job.Ticket) error {
	first := make(chan error, 1)
	go func() { first <- t.First() }()
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for before := 0; ; {
		if ahead := t.Ahead(); ahead != before && ahead > 0 {
			text := fmt.Sprintf("waiting for %s: place %d in the queue", humanfmt.OnGPUs(w.shown()), ahead+1)
			if before == 0 {
				if m, err := machine.Read(); err == nil {
					text += w.holdersText(&m)
				}
			}
			before, w.announced = ahead, true
			w.tell(text)
		}
		select {
		case err := <-first:
			return err
		case <-tick.C:
			if err := w.refresh(); err != nil {
				return err
			}
		case <-w.expired:
			return w.noRoom(fmt.Sprintf(" (place %d in the queue)", t.Ahead()+1))
		}
	}
}

// untilRoom returns when all devices have room.
func (w *waiter) untilRoom() error {
	watch, err := watchJobs()
	if err != nil {
		return err
	}
	defer watch.stop()
	ask := job.Backoff{First: askFirst, Last: askLast}
	for announced := false; ; {
		if err := w.refresh(); err != nil {
			return err
		}
		m, err := machine.Read()
		if err != nil {
			return fmt.Errorf("waiting for room: %w", err)
		}
		short, unasked := w.short(&m)
		if len(short) == 0 {
			return nil
		}
		if !announced {
			announced, w.announced = true, true
			w.tell(fmt.Sprintf("waiting for %s: first in the queue%s", humanfmt.OnGPUs(w.shown()), w.holdersText(&m)))
		}
		changed, later := w.makeRoom(&m)
		if changed {
			continue
		}
		sure := watch.ends(&m, short)
		if w.ask != nil {
			watch.waitFor(w.wakes, machine.JobID{Path: w.wakes.Path})
			sure = false // only some of its processes may end
		}
		sure = sure && w.idle == nil // users' programs end, and their jobs stay
		var again <-chan time.Time
		switch {
		case unasked:
			again = time.After(ask.After(0))
		case later:
			again = time.After(lookForUnused)
		case !sure:
			again = time.After(readAgain)
		}
		select {
		case <-watch.changed:
		case <-again:
		case <-w.expired:
			return w.noRoom(w.holdersText(&m))
		}
	}
}

func (w *waiter) noRoom(why string) error {
	return fmt.Errorf("%w for %s after %s%s", ErrNoRoom, humanfmt.OnGPUs(w.shown()), humanfmt.Span(time.Since(w.began)), why)
}

// short returns the devices without enough room, or none if enough others have it. unasked reports whether other
// programs than jobs hold what is missing on one of them. It is asked as if the jobs asleep slept.
func (w *waiter) short(m *machine.Machine, asleep ...*machine.Job) (devices []int, unasked bool) {
	for d, bytes := range w.wants {
		r := roomOn(m, d, asleep...)
		if r.left >= bytes {
			continue
		}
		devices = append(devices, d)
		unasked = unasked || r.left+r.outside >= bytes
	}
	w.roomy = anywhere &^ region.PlaceAt(devices...)
	if w.devices > 0 && len(w.wants)-len(devices) >= w.devices {
		return nil, false
	}
	return devices, unasked
}

// room is the room on a device.
type room struct {
	left    uint64   // bytes
	outside uint64   // bytes that the driver counts and that no job with a limit holds
	holders []holder // jobs with a limit, the largest first
}

type holder struct {
	job   *machine.Job
	bytes uint64 // its limit, or what it holds if that is more
}

// besidePolicy is a variable for tests.
var besidePolicy = machine.BesidePolicy

// roomOn returns the room on a device: its memory, less the limits of all jobs on it, and less what the driver
// counts beyond what these jobs hold: the driver's own memory, programs in no job, and jobs without a limit, or with one
// that does not count because the job is beside the policy in force. Jobs in asleep count as if they slept.
func roomOn(m *machine.Machine, device int, asleep ...*machine.Job) (out room) {
	at := slices.IndexFunc(m.Devices, func(g machine.GPU) bool { return g.Device == device })
	if at < 0 {
		return out // the driver does not answer now
	}
	g := &m.Devices[at]
	out.outside = g.Used
	var taken uint64
	beside := besidePolicy()
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.State == machine.Ended || j.LeavesRoom() {
			continue // a job that sleeps gets its room back as a newcomer would
		}
		for n := range j.Devices {
			d := &j.Devices[n]
			sleeps := slices.Contains(asleep, j)
			if m.DeviceOf(d) != at || (!d.Limited || beside(j)) && !sleeps {
				continue
			}
			held := max(d.Used, d.Driver)
			out.outside -= min(out.outside, held)
			if sleeps {
				continue
			}
			bytes := max(d.Limit, held)
			taken += min(bytes, ^taken)
			if bytes > 0 {
				out.holders = append(out.holders, holder{j, bytes})
			}
		}
	}
	slices.SortStableFunc(out.holders, func(a, b holder) int { return cmp.Compare(b.bytes, a.bytes) })
	out.left = g.Total - min(g.Total, taken)
	out.left -= min(out.left, out.outside)
	return out
}

// maxNamed bounds how many jobs holdersText names.
const maxNamed = 3

// holdersText says what holds the room on the first device that lacks it, or of some of several devices on the one that lacks
// least.
func (w *waiter) holdersText(m *machine.Machine) string {
	devices := slices.Sorted(maps.Keys(w.wants))
	if w.devices > 0 {
		slices.SortStableFunc(devices, func(a, b int) int { return cmp.Compare(roomOn(m, b).left, roomOn(m, a).left) })
	}
	for _, d := range devices {
		r := roomOn(m, d)
		if r.left >= w.wants[d] {
			continue
		}
		var parts []string
		for i, h := range r.holders {
			if i == maxNamed {
				rest := uint64(0)
				for _, h := range r.holders[i:] {
					rest += min(h.bytes, ^rest)
				}
				parts = append(parts, fmt.Sprintf("%s %s", humanfmt.Plural(len(r.holders)-i, "more job", "more jobs"), humanfmt.Bytes(rest)))
				break
			}
			parts = append(parts, fmt.Sprintf("%s %s", h.job.Title(), humanfmt.Bytes(h.bytes)))
		}
		if r.outside > 0 {
			parts = append(parts, "others "+humanfmt.Bytes(r.outside))
		}
		return fmt.Sprintf("; GPU %d has room for %s (%s)", d, humanfmt.Bytes(r.left), strings.Join(parts, ", "))
	}
	return ""
}
