package region

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

// LimitsSuffix is the suffix of the file beside a region in which an operator keeps the limits,
// where the job cannot change them.
const LimitsSuffix = ".limits"

// Limits are a process's limits, or limits to set, for each device. The zero value sets nothing.
type Limits struct {
	Memory     [abi.Devices]abi.Limit
	Compute    [abi.Devices]uint64 // shares, in the form of abi.DeviceLimits
	ComputeMax [abi.Devices]uint64 // caps, in the same form
	Hidden     [abi.Devices]uint64 // not 0 for devices that the job's processes do not see; see abi.DeviceLimits
	Round      uint64              // microseconds
	Priority   uint64              // abi.PriorityHigh to abi.PriorityLow
	WaitAlloc  uint64              // milliseconds, or abi.WaitAllocNone
}

// Role is how a process got an initialised region.
type Role int

// Roles, cheapest first.
const (
	FastPath    Role = iota // found it complete
	Waited                  // waited for the initialiser
	Helped                  // waited long enough, and finished another process's work
	Initialiser             // this process initialised it
)

func (r Role) String() string {
	return [...]string{"fast path", "waited", "helped", "initialiser"}[r]
}

// Options are the settings of Open.
type Options struct {
	Limits   Limits
	Mode     os.FileMode // for a new file; 0 means 0600
	AnyOwner bool        // for an operator, who may use a tenant's region
	NoCreate bool        // a missing file is an error
}

// Region is an open region. It is safe for concurrent use.
type Region struct {
	path string
	dir  *int // descriptor of its folder, owned by the caller; nil to use the path
	file *file
	role Role

	m          *abi.Region
	mem        []byte // nil over a heap
	limits     *abi.Limits
	limitsMem  []byte // nil if the limits are inside the region
	limitsAt   string // path of the file with the limits
	writable   bool
	setsLimits bool                   // opened by OpenForLimits
	torn       map[copiedAccount]bool // accounts that changed while they were copied; nil if m is mapped
	budgetLeft func() bool            // set by SetBudget

	alive  liveness
	broken atomic.Bool
	closed atomic.Bool
	former atomic.Bool // memory that this process held before an exec has been returned

	tally tally
}

// Open attaches to the region at path. It creates and initialises the region if necessary.
func Open(path string, opt Options) (*Region, error) {
	if opt.Mode == 0 {
		opt.Mode = 0o600
	}
	f, err := openFile(path, true, !opt.NoCreate, opt.Mode)
	if err != nil {
		return nil, err
	}
	point(abi.InitOpened)
	r := &Region{path: path, file: f, writable: true, alive: kernel{f}}
	if err := r.open(opt); err != nil {
		r.unmap()
		f.close()
		return nil, err
	}
	return r, nil
}

func (r *Region) open(opt Options) (err error) {
	if !opt.AnyOwner {
		if err := r.file.checkOwner(r.path); err != nil {
			return err
		}
	}
	fresh, err := r.file.inspect(r.path)
	if err != nil {
		return err
	}
	made := false
	if fresh {
		if opt.NoCreate {
			return r.file.unmade(r.path)
		}
		if made, err = r.file.allocate(r.path); err != nil {
			return err
		}
	}
	if r.m, r.mem, err = mapRegion(r.file.fd, true); err != nil {
		return fmt.Errorf("region %s: %w", r.path, err)
	}
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if fresh {
		point(abi.InitMapped)
		if r.role, err = r.initialise(opt, made); err != nil {
			return err
		}
	}
	if err := r.check(); err != nil {
		return err
	}
	if err := r.openLimits(); err != nil {
		return err
	}
	return r.offerLimits(opt.Limits)
}

// OpenMapped maps an existing region for reading. It writes nothing, not even counters. It is for a
// reader that must see each change at once, of a file that no process cuts short; OpenReadOnly is
// for all others.
func OpenMapped(path string) (_ *Region, err error) {
	f, err := openFile(path, false, false, 0)
	if err != nil {
		return nil, err
	}
	r := &Region{path: path, file: f, alive: kernel{f}}
	defer func() {
		if err != nil {
			r.unmap()
			f.close()
		}
	}()
	fresh, err := f.inspect(path)
	if err != nil {
		return nil, err
	}
	if fresh {
		return nil, f.unmade(path)
	}
	if r.m, r.mem, err = mapRegion(f.number(), false); err != nil {
		return nil, fmt.Errorf("region %s: %w", path, err)
	}
	if err := r.checkGuarded(); err != nil {
		return nil, err
	}
	return r, r.openLimits()
}

func (r *Region) checkGuarded() (err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	return r.check()
}

// check makes sure that the mapped file is the one that was inspected.
func (r *Region) check() error {
	h := &r.m.Header
	// Acquire: pairs with the swap to StateComplete in initialise and in C.
	if s := atomic.LoadUint64(&h.State); s != abi.StateComplete {
		return fmt.Errorf("region %s: %w: state %d", r.path, ErrDamaged, s)
	}
	if h.Magic != abi.Magic || h.Version != abi.Version || h.Size != uint64(regionSize) || h.Devices != abi.Devices || h.Slots != abi.Slots {
		return fmt.Errorf("region %s: %w: its header changed (end the job's processes and remove it)", r.path, ErrDamaged)
	}
	return r.whole()
}

// initialise brings a new file to the state COMPLETE, or waits while another process does. See
// docs/protocols.md, *Initialisation*.
func (r *Region) initialise(opt Options, made bool) (Role, error) {
	state := &r.m.Header.State
	if !made && atomic.LoadUint64(state) == abi.StateUninit {
		if err := r.file.empty(r.path); err != nil && atomic.LoadUint64(state) == abi.StateUninit {
			return 0, err // a real error, not a concurrent initialisation
		}
	}
	if atomic.CompareAndSwapUint64(state, abi.StateUninit, abi.StateInProgress) {
		point(abi.InitWon)
		return Initialiser, r.complete(opt)
	}
	start, pause := initNow(), 50*time.Microsecond
	for {
		// Acquire: pairs with the swap in complete.
		if atomic.LoadUint64(state) == abi.StateComplete {
			return Waited, nil
		}
		if initNow().Sub(start) > abi.InitTimeoutNS {
			if err := r.complete(opt); err != nil {
				return Helped, err
			}
			atomic.AddUint64(&r.m.Header.Counters.Helped, 1)
			return Helped, nil
		}
		initSleep(pause)
		pause = min(2*pause, time.Millisecond)
	}
}

// The clock of initialise, which tests replace.
var initNow, initSleep = time.Now, time.Sleep

// complete writes everything that initialisation writes. It sets a field only if no process has set
// it. So it does not matter which process calls it, how often, or how late.
func (r *Region) complete(opt Options) error {
	h := &r.m.Header
	if atomic.LoadUint64(&h.State) == abi.StateComplete {
		return nil
	}
	where := uint32(abi.LimitsBeside)
	if _, err := os.Lstat(r.path + LimitsSuffix); errors.Is(err, fs.ErrNotExist) {
		where = abi.LimitsInside
	} else if err != nil {
		return fmt.Errorf("region %s: %w: %w (an operator may have put some there)", r.path, ErrLimits, err)
	}
	atomic.CompareAndSwapUint32(&h.Flags, 0, where)
	if atomic.LoadUint32(&h.Flags) == abi.LimitsInside {
		if err := r.initLimits(opt.Limits); err != nil {
			return err
		}
	}
	atomic.CompareAndSwapUint64(&r.m.Tail.Magic, 0, abi.TailMagic)
	atomic.CompareAndSwapUint64(&h.Created, 0, uint64(time.Now().UnixNano()))
	atomic.CompareAndSwapUint32(&h.Devices, 0, abi.Devices)
	atomic.CompareAndSwapUint32(&h.Slots, 0, abi.Slots)
	atomic.CompareAndSwapUint64(&h.Size, 0, uint64(regionSize))
	atomic.CompareAndSwapUint32(&h.Version, 0, abi.Version)
	atomic.CompareAndSwapUint64(&h.Magic, 0, abi.Magic)
	point(abi.InitFields)
	// Release: pairs with every load of State that finds it complete.
	atomic.CompareAndSwapUint64(&h.State, abi.StateInProgress, abi.StateComplete)
	point(abi.InitDone)
	return nil
}

// Created returns when the region was created, in Unix nanoseconds.
func (r *Region) Created() int64 { return timeOf(atomic.LoadUint64(&r.m.Header.Created)) }

// Role returns how this process got the region.
func (r *Region) Role() Role { return r.role }

// Path returns the path of the region.
func (r *Region) Path() string { return r.path }

// Close unmaps the region; nothing of it may be in use any more. Slots that were not left are freed
// by the next process that needs them, after this process has closed the file.
func (r *Region) Close() error {
	if r.closed.Swap(true) {
		return ErrClosed
	}
	err := r.flushGuarded()
	r.broken.Store(true)
	if r.file != nil {
		err = errors.Join(err, r.unmap())
		r.file.close()
	}
	return err
}

func (r *Region) flushGuarded() (err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if !r.broken.Load() {
		r.flush()
	}
	return nil
}

func (r *Region) unmap() error {
	var errs []error
	for _, mem := range [][]byte{r.limitsMem, r.mem} {
		if mem != nil {
			errs = append(errs, unix.Munmap(mem))
		}
	}
	r.mem, r.limitsMem = nil, nil
	return errors.Join(errs...)
}
