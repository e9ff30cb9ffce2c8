package policy

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"ration/internal/abi"
	"ration/internal/connlimit"
	"ration/internal/job"
	"ration/internal/proc"
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
	used    [abi.Devices]uint64            // of the whole device
	inJobs  map[int][abi.Devices]uint64    // by processes in a user's job and runs under the policy, by user
	outside map[int][abi.Devices]uint64    // by other processes, by account (proc.Account)
	roots   map[string][abi.Devices]uint64 // by processes in root's own jobs, by the path of the region
}

// look is the state of lookAround.
var look = looker{read: readMachine}

// looker reads the machine, for one or several requests at once.
type looker struct {
	read    func() *seen
	mu      sync.Mutex
	last    *seen             // guarded by mu
	reading chan struct{}     // guarded by mu; closed when the machine has been read; nil if it is not being read
	began   time.Time         // guarded by mu
	late    bool              // guarded by mu: a look took too long, and none has been in time since
	warn    func(text string) // guarded by mu; nil if there is no log
}

const (
	// lookAgain bounds how often the machine is read: users can make the service ask as often as they like.
	lookAgain = time.Second
	// lookMost is how long a look may take. A driver that does not respond must not keep others from the service, whose
	// clients wait 10 s for an answer (USERJOB_WAITS). It is longer than machine.Read waits for users' folders, the kernel's
	// locks, and the regions that these show.
	lookMost = 7 * time.Second
	// heldFor is how long what processes hold counts.
	heldFor = 10 * time.Second
)

// lastSeen returns what lookAround has found last, or nil if that was longer ago.
func lastSeen(age time.Duration) *seen { return look.lastSeen(age) }

// lookAround reads the machine. It may take time, so it is called without the lock of lockJobs, and what it finds may be
// wrong when it is used: lend checks that a job that sleeps holds nothing. If it takes too long, it returns what was found
// last, as long as that counts; after that nothing is known: no job sleeps, and only the limits of rations count.
func lookAround() *seen { return look.around() }

func (l *looker) lastSeen(age time.Duration) *seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil || time.Since(l.last.at) >= age {
		return nil
	}
	return l.last
}

func (l *looker) around() *seen {
	if known := l.lastSeen(lookAgain); known != nil { // another request has just looked
		return known
	}
	l.mu.Lock()
	if l.reading == nil {
		done := make(chan struct{})
		l.reading, l.began = done, time.Now()
		go func() {
			found := l.read()
			l.mu.Lock()
			l.late = l.late && time.Since(l.began) >= lookMost
			l.last, l.reading = found, nil
			l.mu.Unlock()
			close(done)
		}()
	}
	done, left := l.reading, lookMost-time.Since(l.began)
	l.mu.Unlock()
	select {
	case <-done:
	case <-time.After(left):
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reading == done {
		l.isLate()
	}
	return l.last
}

// isLate forgets what was found too long ago, and says once that looks take too long. The caller holds l.mu.
func (l *looker) isLate() {
	if l.last == nil || time.Since(l.last.at) >= heldFor {
		l.last = &seen{at: time.Now()}
	}
	if !l.late && l.warn != nil {
		l.warn("reading what programs hold takes longer than " + lookMost.String() + ": if it takes much longer, rations count by their limits only, and none that sleeps is lent")
	}
	l.late = true
}

// warnTo sets where to write that looks take too long.
func (l *looker) warnTo(warn func(text string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.warn = warn
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
	out.held = heldOn(&m, proc.Account)
	return out
}

// errUnread is returned, so that withRations looks and asks again.
var errUnread = errors.New("it is not known what the jobs of this machine hold")

// mustLook reports whether the machine must be looked at first.
func (r *rations) mustLook() bool {
	r.unread = r.unread || r.seen == nil
	return r.seen == nil
}

// addTo adds what is held of a device that is known.
func addTo[K comparable](to map[K][abi.Devices]uint64, known map[int]bool, key K, device int, bytes uint64) {
	if known[device] {
		sum := to[key]
		sum[device] += min(bytes, ^sum[device])
		to[key] = sum
	}
}

// heldOn returns what processes hold, or nil if that is not known. account is proc.Account.
func heldOn(m *machine.Machine, account func(int) int) *holdings {
	if slices.ContainsFunc(m.Findings, func(f machine.Finding) bool { return f.Kind == machine.DriverSilent }) {
		return nil
	}
	h := &holdings{inJobs: map[int][abi.Devices]uint64{}, outside: map[int][abi.Devices]uint64{}, roots: map[string][abi.Devices]uint64{}}
	known := map[int]bool{}
	for _, g := range m.Devices {
		if !g.Failed && !g.MIG && g.Device < abi.Devices { // of a divided device, jobs have the instances
			h.used[g.Device], known[g.Device] = g.Used, true
		}
	}
	add := func(to map[int][abi.Devices]uint64, uid, device int, bytes uint64) {
		addTo(to, known, uid, device, bytes)
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
			} else if strings.HasPrefix(j.Path, job.RootFolder+"/") {
				addTo(h.roots, known, j.Path, m.Devices[at].Device, inside)
			} else { // a region that a user has made elsewhere
				add(h.outside, account(j.UID), m.Devices[at].Device, inside)
			}
		}
	}
	for _, o := range m.Outside {
		if o.UID >= 0 { // otherwise it has ended since the driver was asked
			add(h.outside, account(o.UID), o.Device, o.Used)
		}
	}
	return h
}

// withRations calls do with the rations of the policy in force, as twice does.
func (k *keeper) withRations(user *connlimit.User, do func(*rations) error) error {
	return k.twice(user, func(r *rations) error {
		if err := checkInForce(); err != nil {
			return err
		}
		return do(r)
	})
}

// twice calls do with the rations of the policy. If do fails, and what the machine's jobs and processes hold counts and was
// not known, twice looks and calls do again. What a run that do has ended had is the user's in both calls.
func (k *keeper) twice(user *connlimit.User, do func(*rations) error) error {
	var ended []booked
	try := func(known *seen) (unread bool, err error) {
		r, done, err := k.open()
		if err != nil {
			return false, err
		}
		defer done()
		r.seen, r.ended = known, ended
		err = do(r)
		ended = r.ended
		return r.unread, err
	}
	unread, err := try(lastSeen(lookAgain))
	if unread && err != nil {
		var found *seen
		user.Free(func() { found = lookAround() }) // without a lock, and what it finds is for all users
		_, err = try(found)
	}
	return err
}
