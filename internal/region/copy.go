package region

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

// A process that is not a member of a job does not map the job's file, because a process that can
// write the file can cut it short under a mapping, and can change data after it was checked.
// Instead it reads the file into its own memory, with system calls that return, and parses that.
//
// A copy is not taken at one instant. Data that belongs together is read so that a concurrent
// change is noticed: an account between two reads of its phase, as in docs/protocols.md, *The
// sequence lock*; a refusal by its checksum; a slot between two reads of its status. Everything
// else is single words.

// copiedAccount identifies an account of a copy.
type copiedAccount struct{ device, slot int }

// maxCopyTries bounds the retries of one copy, over all accounts: a job whose processes write
// without pause must not keep a reader busy.
const maxCopyTries = 4096

// OpenReadOnly reads an existing region of any owner. The content is that of now, until Refresh. It
// writes nothing, not even counters.
func OpenReadOnly(path string) (*Region, error) {
	f, err := openFile(path, false, false, 0)
	if err != nil {
		return nil, err
	}
	return readOnly(f, path, nil)
}

// OpenReadOnlyAt is OpenReadOnly for a file in a folder, given the folder's descriptor. The
// descriptor must stay open as long as the region. No path is followed again, so another user
// cannot lead this process elsewhere. path is for messages.
func OpenReadOnlyAt(dir int, name, path string) (*Region, error) {
	f, err := openFileAt(dir, name, path)
	if err != nil {
		return nil, err
	}
	return readOnly(f, path, &dir)
}

func readOnly(f *file, path string, dir *int) (_ *Region, err error) {
	r := &Region{path: path, dir: dir, file: f, alive: lockOnly{kernel{f}, &holders{f: f}}, torn: map[copiedAccount]bool{}}
	defer func() {
		if err != nil {
			_ = r.unmap()
			f.close()
		}
	}()
	if r.m, r.mem, err = newRegion(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	fresh, err := f.inspect(path)
	if err != nil {
		return nil, err
	}
	if fresh {
		return nil, f.unmade(path)
	}
	if err := r.Refresh(); err != nil {
		return nil, err
	}
	return r, nil
}

// OpenForLimits is OpenReadOnly for the owner, which may set limits: in the file beside the region,
// or inside it. If there is an operator's file, OpenOperatorLimits does the same without reading
// the region.
func OpenForLimits(path string) (*Region, error) {
	r, err := OpenReadOnly(path)
	if err == nil {
		r.setsLimits = true
	}
	return r, err
}

// SetBudget bounds the time for a copy. After left returns false, an account that changes while it
// is copied is marked, and not read again.
func (r *Region) SetBudget(left func() bool) { r.budgetLeft = left }

// SetAskBudget bounds the time for querying which processes hold the region's locks. After left
// returns false, the region's own claims are used, unconfirmed, and no process counts as dead.
// Without it, Processes and AskAgain each have 200 ms.
func (r *Region) SetAskBudget(left func() bool) {
	if k, is := r.alive.(lockOnly); is {
		k.holders.budgetLeft = left
	}
}

// Refresh reads the content of a region of OpenReadOnly again. It is not safe for concurrent use.
func (r *Region) Refresh() error {
	if r.torn == nil {
		return nil // mapped regions are always current
	}
	if r.closed.Load() {
		return ErrClosed
	}
	if err := r.copyWith(func() {}); err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return err
	}
	return r.copyLimits()
}

// RefreshDevice is Refresh for one device: how much is granted, and how much each process holds. It
// reports whether the granted amount stayed the same during the read.
func (r *Region) RefreshDevice(device int) (stable bool, err error) {
	if err := checkDevice(device); err != nil {
		return false, err
	}
	if r.torn == nil {
		return true, nil
	}
	if r.closed.Load() {
		return false, ErrClosed
	}
	c := &copier{r: r, tries: maxCopyTries, between: func() {}}
	d := &r.m.Devices[device]
	if err := c.readDevice(device); err != nil {
		return false, err
	}
	if c.untouched(device) {
		// Read the accounts in any case: a job that wrote zero into the device's words must not be
		// able to hide the memory of its processes.
		if blank, err := c.readBlank(device, r.high()); blank || err != nil {
			return blank, err
		}
	}
	before := d.LedgerWord
	maps.DeleteFunc(r.torn, func(a copiedAccount, _ bool) bool { return a.device == device })
	if err := c.readAccounts(device, r.high()); err != nil {
		return false, err
	}
	if err := c.readDevice(device); err != nil {
		return false, err
	}
	return d.LedgerWord == before, nil
}

// copyWith takes a copy, and calls between after each system call, for tests.
func (r *Region) copyWith(between func()) error {
	return (&copier{r: r, tries: maxCopyTries, between: between}).copy()
}

// copier takes one copy.
type copier struct {
	r       *Region
	tries   int // retries left
	between func()
}

func (c *copier) copy() error {
	r := c.r
	clear(r.torn)
	if k, is := r.alive.(lockOnly); is {
		k.holders.reset()
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.file.number(), &st); err != nil {
		return fmt.Errorf("looking at %s: %w", r.path, err)
	}
	if st.Size != regionSize {
		return fmt.Errorf("reading %s: %w: %d bytes where %d belong (it was cut short or overwritten; end the job's processes and remove it)",
			r.path, ErrSize, st.Size, regionSize)
	}
	if err := errors.Join(c.read(statusOffset, slotsOffset), c.read(0, computeOffset)); err != nil { // status; header, limits, devices
		return err
	}
	high := int64(r.high())
	before := r.m.Status
	if err := c.read(slotsOffset, slotsOffset+high*slotSize); err != nil {
		return err
	}
	if r.m.Header.RefusalNext > 0 || r.m.Header.DeathNext > 0 { // the two rings
		if err := c.read(refusalsOffset, accountsOffset); err != nil {
			return err
		}
	}
	for d := range r.m.Devices {
		if c.untouched(d) {
			continue
		}
		if err := errors.Join(c.read(computeWords(int64(d))), c.readAccounts(d, int(high))); err != nil {
			return err
		}
	}
	if err := c.read(tailOffset, regionSize); err != nil {
		return err
	}
	if err := c.read(statusOffset, slotsOffset); err != nil {
		return err
	}
	for slot := range high {
		if r.m.Status[slot] != before[slot] {
			r.m.Status[slot] = 0 // the slot changed its owner during the read
		}
	}
	return nil
}

// read reads a part of the file.
func (c *copier) read(from, to int64) error { return c.pread(regionBytes(c.r.m)[from:to], from) }

// computeWords returns the offsets of the words for a device's time. It leaves out the
// TimeParts, which are as large as everything else, and which only the job's processes need.
func computeWords(device int64) (from, to int64) {
	from = computeOffset + device*computeSize
	return from, from + partsOffset
}

// untouched reports whether no process ever held memory of a device, as far as its words show.
func (c *copier) untouched(device int) bool {
	return c.r.m.Devices[device].LedgerWord == 0 && c.r.m.Devices[device].Peak == 0
}

// readBlank reads a device's accounts once, and reports whether all of them are empty.
func (c *copier) readBlank(device, high int) (bool, error) {
	from, to := accountOffset(device, 0), accountOffset(device, high)
	if err := c.read(from, to); err != nil {
		return false, err
	}
	return allZero(regionBytes(c.r.m)[from:to]), nil
}

// readDevice reads a device's words.
func (c *copier) readDevice(device int) error {
	return c.read(devicesOffset+int64(device)*deviceSize, devicesOffset+int64(device+1)*deviceSize)
}

// pread fills buf from the file at an offset.
func (c *copier) pread(buf []byte, at int64) error {
	r := c.r
	for len(buf) > 0 {
		n, err := unix.Pread(r.file.number(), buf, at)
		c.between()
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("reading %s: %w", r.path, err)
		case n == 0:
			return fmt.Errorf("reading %s: %w (it was cut short meanwhile)", r.path, ErrSize)
		}
		buf, at = buf[n:], at+int64(n)
	}
	return nil
}

// readAccounts reads a device's accounts: first their phases, then the accounts, then the phases
// again. It reads an account again if its phase has changed.
func (c *copier) readAccounts(device, high int) error {
	accounts := c.r.m.Accounts[device][:high]
	from, to := accountOffset(device, 0), accountOffset(device, high)
	phases := make([]uint64, high)
	if err := c.read(from, to); err != nil {
		return err
	}
	for slot := range accounts {
		phases[slot] = accounts[slot].Phase
	}
	if err := c.read(from, to); err != nil {
		return err
	}
	after := make([]abi.Account, high)
	if err := c.pread(accountBytes(after), from); err != nil {
		return err
	}
	for slot := range accounts {
		a := &accounts[slot]
		if a.Phase = phases[slot]; samePhase(a.Phase, after[slot].Phase) {
			continue
		}
		if abi.Status(c.r.m.Status[slot]).State() != abi.SlotActive {
			continue
		}
		if err := c.readAccount(device, slot); err != nil {
			return err
		}
	}
	return nil
}

// readAccount reads one account until it did not change during a read, or marks it.
func (c *copier) readAccount(device, slot int) error {
	a := &c.r.m.Accounts[device][slot]
	at := accountOffset(device, slot)
	for range abi.ReadTries {
		if c.tries == 0 || c.r.budgetLeft != nil && !c.r.budgetLeft() {
			break
		}
		c.tries--
		c.r.tally.retries.Add(1)
		var before, after [1]abi.Account
		for _, buf := range [][]byte{phaseBytes(&before[0]), accountBytes(c.r.m.Accounts[device][slot : slot+1]), phaseBytes(&after[0])} {
			offset := at
			if len(buf) == 8 {
				offset += phaseOffset
			}
			if err := c.pread(buf, offset); err != nil {
				return err
			}
		}
		if a.Phase = before[0].Phase; samePhase(before[0].Phase, after[0].Phase) {
			return nil
		}
	}
	c.r.torn[copiedAccount{device, slot}] = true
	return nil
}

// samePhase reports whether the data that was read between two phases is consistent: between phase
// 0 and 1 the valid copy is not written.
func samePhase(before, after uint64) bool { return before|abi.PhaseB == after|abi.PhaseB }

// copyLimits reads the limits of this region, which openLimits would map.
func (r *Region) copyLimits() error {
	fd, beside, err := r.openBeside()
	if err != nil {
		return err
	}
	r.limits, r.limitsAt = &r.m.Limits, r.path
	if fd < 0 {
		return nil
	}
	defer unix.Close(fd) // no locks are held through this descriptor
	page, err := checkLimits(fd, beside, r.owner)
	if err != nil {
		return err
	}
	r.limits, r.limitsAt = page, beside
	return nil
}

// lockOnly finds living processes by their locks alone. A slot's description of its owner is
// written by the job, and looking it up in /proc could be made to take forever. A process that has
// lost both its locks (closing files loses only the first) shows as dead until it has taken the
// first again.
type lockOnly struct {
	kernel
	holders *holders
}

// holder returns the PID that the kernel reports only if that process really has the lock, because
// the PID may have been reused.
func (k lockOnly) holder(slot int) int {
	if _, pid := k.named(slot); k.holders.has(pid, slotByte(slot, 0).Start) {
		return pid
	}
	return 0
}

// named returns whether a slot is locked, and the PID that the kernel reports. If the budget is
// used up, it returns true and no PID: a failed query is not an answer.
func (k lockOnly) named(slot int) (locked bool, pid int) {
	if !k.holders.left() {
		return true, 0
	}
	if locked, pid = k.asked(slot); !locked {
		pid = 0
	}
	return locked, max(pid, 0)
}

func (k lockOnly) outlived(slot int, st abi.Status) bool {
	return k.holders.left() && k.kernel.outlived(slot, st)
}

func (k lockOnly) dead(slot int, _ *abi.Slot, st abi.Status) (cause int) {
	if k.f.held[slot].Load() == st.Gen() {
		return 0 // it is our own lock, which the kernel does not report to us
	}
	if locked, _ := k.named(slot); locked || k.kept(slot) {
		return 0
	}
	return abi.CauseUnseen
}

// Locked reports whether a process has locked any byte of a region, as each member of its job does.
// It works for any content and version of the file. A file that cannot be queried counts as locked.
func Locked(path string) bool {
	f, err := openFile(path, false, false, 0)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrSymlink) && !errors.Is(err, ErrNotRegular)
	}
	defer f.close()
	for slot := range f.held {
		if f.held[slot].Load() != 0 {
			return true // our own, which the kernel does not report
		}
	}
	return f.locked()
}

// locked reports whether another process has a byte of the file locked.
func (f *file) locked() bool { return LockedFD(f.number()) }

// Locked reports whether another process has any of the region's bytes locked.
func (r *Region) Locked() bool { return r.file != nil && r.file.locked() }

// CheckRemovable returns nil for a file in the folder dir that was made as a region, and of which
// no process has locked a byte.
func CheckRemovable(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// Closing it drops this process's locks on the file, so this process must not be a member.
	defer func() { _ = unix.Close(fd) }()
	if err := checkMagic(fd); err != nil {
		return err
	}
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l); err != nil || l.Type != unix.F_UNLCK {
		return errors.Join(err, errors.New("a process has it locked"))
	}
	return nil
}

// checkMagic returns nil for a file that was made as a region, of whatever version.
func checkMagic(fd int) error {
	var st unix.Stat_t
	var h abi.Header
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.Join(err, ErrNotRegular)
	}
	if n, err := unix.Pread(fd, bytesOf(&h), 0); err != nil || n < 8 || h.Magic != abi.Magic {
		return errors.Join(err, ErrForeign)
	}
	return nil
}

// CheckMagic returns nil for a file in the folder dir that was made as a region, of whatever
// version.
func CheckMagic(dir int, name string) error {
	f, err := openFileAt(dir, name, name)
	if err != nil {
		return err
	}
	defer f.close()
	return checkMagic(f.number())
}

// IsSlotByte reports whether an offset is a byte that the owner of a slot locks.
func IsSlotByte(at int64) bool {
	return at >= slotsOffset && at < slotsOffset+abi.Slots*slotSize && (at-slotsOffset)%slotSize == 0
}

// AskAgain makes LockedBy query the kernel again. In a process that is not a member, LockedBy
// otherwise queries only once for each process.
func (r *Region) AskAgain() {
	if k, is := r.alive.(lockOnly); is {
		k.holders.forget()
	}
}

// LockedBy returns the PID of the process that has locked a slot's byte, as this process sees it,
// confirmed by the kernel. It returns 0 if there is none, or it is not visible. A process that is
// not a member gets only a PID whose own descriptors have the lock.
func (r *Region) LockedBy(slot int) int {
	if uint(slot) >= abi.Slots || r.file == nil {
		return 0
	}
	if gen := r.file.held[slot].Load(); gen != 0 && gen == abi.Status(atomic.LoadUint64(&r.m.Status[slot])).Gen() {
		return self().pid
	}
	return max(r.alive.holder(slot), 0)
}
