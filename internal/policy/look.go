package policy

import (
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/machine"
)

// seen is what lookAround has found on the machine. It is not changed.
type seen struct {
	at     time.Time
	asleep map[string]bool // jobs that sleep, and of which the driver counts no memory, by the path of their region
	held   *holdings       // nil if the driver did not say which processes hold memory
}

// holdings are the bytes of each device that processes hold, by the driver's count: what a region says is its user's word.
type holdings struct {
	used    [abi.Devices]uint64         // of the whole device
	inJobs  map[int][abi.Devices]uint64 // by processes in a user's job and runs under the policy, by user
	outside map[int][abi.Devices]uint64 // by other processes, by user; noUser has those of jobs that are no user's ration
}

const noUser = -1

// look is the state of lookAround.
var look struct {
	mu      sync.Mutex
	last    *seen         // guarded by mu
	reading chan struct{} // guarded by mu; closed when the machine has been read; nil if it is not being read
	began   time.Time     // guarded by mu
}

const (
	// lookAgain bounds how often the machine is read: users can make the service ask as often as they like.
	lookAgain = time.Second
	// lookMost is how long a look may take. A driver or a user's folder that does not respond must not keep others from the
	// service.
	lookMost = 2 * time.Second
	// heldFor is how long what processes hold counts.
	heldFor = 10 * time.Second
	forEver = time.Duration(math.MaxInt64)
)

// lastSeen returns what lookAround has found last, or nil if that was longer ago.
func lastSeen(age time.Duration) *seen {
	look.mu.Lock()
	defer look.mu.Unlock()
	if look.last == nil || time.Since(look.last.at) >= age {
		return nil
	}
	return look.last
}

// lookAround reads the machine. It may take time, so it is called without the lock of lockJobs, and what it finds may be
// wrong when it is used: lend checks that a job that sleeps holds nothing. If it takes too long, nothing is known: no job
// sleeps, and only the limits of rations count.
func lookAround() *seen {
	if known := lastSeen(lookAgain); known != nil { // another request has just looked
		return known
	}
	look.mu.Lock()
	if look.reading == nil {
		done := make(chan struct{})
		look.reading, look.began = done, time.Now()
		go func() {
			found := readMachine()
			look.mu.Lock()
			look.last, look.reading = found, nil
			look.mu.Unlock()
			close(done)
		}()
	}
	done, left := look.reading, lookMost-time.Since(look.began)
	look.mu.Unlock()
	select {
	case <-done:
	case <-time.After(left):
	}
	look.mu.Lock()
	defer look.mu.Unlock()
	if look.reading == done {
		look.last = &seen{at: time.Now()}
	}
	return look.last
}

func readMachine() *seen {
	m, err := machine.Read()
	out := &seen{at: time.Now(), asleep: map[string]bool{}}
	if err != nil {
		return out
	}
	for i := range m.Jobs {
		if j := &m.Jobs[i]; j.LeavesRoom() {
			out.asleep[j.Path] = true
		}
	}
	out.held = heldOn(&m)
	return out
}

// errUnread is returned, so that withRations looks and asks again.
var errUnread = errors.New("it is not known what the jobs of this machine hold")

// mustLook reports whether the machine must be looked at first.
func (r *rations) mustLook() bool {
	r.unread = r.unread || r.seen == nil
	return r.seen == nil
}

// heldOn returns what processes hold, or nil if that is not known.
func heldOn(m *machine.Machine) *holdings {
	if slices.ContainsFunc(m.Findings, func(f machine.Finding) bool { return f.Kind == machine.DriverSilent }) {
		return nil
	}
	h := &holdings{inJobs: map[int][abi.Devices]uint64{}, outside: map[int][abi.Devices]uint64{}}
	known := map[int]bool{}
	for _, g := range m.Devices {
		if !g.Failed && !g.MIG && g.Device < abi.Devices { // of a divided device, jobs have the instances
			h.used[g.Device], known[g.Device] = g.Used, true
		}
	}
	add := func(to map[int][abi.Devices]uint64, uid, device int, bytes uint64) {
		if known[device] {
			sum := to[uid]
			sum[device] += min(bytes, ^sum[device])
			to[uid] = sum
		}
	}
	for i := range m.Jobs {
		j := &m.Jobs[i]
		for n := range j.Devices {
			d := &j.Devices[n]
			at := m.DeviceOf(d)
			if at < 0 {
				continue
			}
			// What the user's processes hold in no job is in Outside as well.
			inside := d.Driver - min(d.Escaped, d.Driver)
			if uid, is := job.PolicyUser(j.Path); is {
				add(h.inJobs, uid, m.Devices[at].Device, inside)
			} else {
				add(h.outside, noUser, m.Devices[at].Device, inside)
			}
		}
	}
	for _, o := range m.Outside {
		if o.UID >= 0 { // otherwise it has ended since the driver was asked
			add(h.outside, o.UID, o.Device, o.Used)
		}
	}
	return h
}
