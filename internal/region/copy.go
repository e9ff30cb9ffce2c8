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

// A process that is no member of a job does not map the job's file: whoever can write
// it can cut it short under a mapping, and change under a check what was checked. It
// reads the file into memory of its own, with system calls that end, and parses that.
//
// A copy is not taken at one instant. What belongs together is read so that a change
// meanwhile is seen: an account between two readings of its phase, as in docs/protocols.md,
// *The sequence lock*; a refusal by its sum; a slot between two readings of its status.
// The rest are single words.

// copiedAccount names an account of a copy.
type copiedAccount struct{ device, slot int }

// maxCopyTries bounds the tries of one copy beyond the first, over all accounts: a job
// whose processes write without pause must not keep its reader.
const maxCopyTries = 4096

// OpenReadOnly opens an existing region to look at it: its content as it is now, until
// Refresh. Nothing is written, not even for bookkeeping, and any owner's will do.
func OpenReadOnly(path string) (*Region, error) {
	f, err := openFile(path, false, false, 0)
	if err != nil {
		return nil, err
	}
	return readOnly(f, path, nil)
}

// OpenReadOnlyAt is OpenReadOnly of the file of a name in a folder, by the folder's
// descriptor, which must stay open as long as the region: a path by which another user
// could lead this process elsewhere meanwhile is not followed again. path is for messages.
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

// OpenForLimits is OpenReadOnly for its owner, who may set limits: in the file beside
// the region, or inside it. Where an operator's file is there, OpenOperatorLimits does the
// same, whatever the region holds.
func OpenForLimits(path string) (*Region, error) {
	r, err := OpenReadOnly(path)
	if err == nil {
		r.setsLimits = true
	}
	return r, err
}

// SetBudget bounds how long a copy takes. Once left returns false, an account that changes while it is
// copied is marked, and not read again.
func (r *Region) SetBudget(left func() bool) { r.budgetLeft = left }

// SetAskBudget bounds how long the kernel is asked which processes have the region's locks. Once left
// returns false, the region's own word counts, unconfirmed, and no process is called dead. Without
// it, Processes and AskAgain each have 200 ms.
func (r *Region) SetAskBudget(left func() bool) {
	if k, is := r.alive.(lockOnly); is {
		k.holders.budgetLeft = left
	}
}

// Refresh makes a region of OpenReadOnly what the file holds now. It is not for use
// beside other calls.
func (r *Region) Refresh() error {
	if r.torn == nil {
		return nil // mapped: it is what the file holds
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

// RefreshDevice is Refresh for one device: what it has granted, and what each process
// holds of it. It reports whether what is granted stayed the same meanwhile.
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
		// What the accounts say is read all the same: a job that wrote zero into the words
		// of the device must not hide by it what its processes hold.
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
	tries   int // left
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
			r.m.Status[slot] = 0 // it changed hands: what was read of it is of two owners
		}
	}
	return nil
}

// read reads a part of the file.
func (c *copier) read(from, to int64) error { return c.pread(regionBytes(c.r.m)[from:to], from) }

// computeWords is where the words of a device's time are, without the parts of time, which are as
// large as all the rest and which only the job's processes need.
func computeWords(device int64) (from, to int64) {
	from = computeOffset + device*computeSize
	return from, from + partsOffset
}

// untouched reports whether, as far as its words say, no process ever held any of a device.
func (c *copier) untouched(device int) bool {
	return c.r.m.Devices[device].LedgerWord == 0 && c.r.m.Devices[device].Peak == 0
}

// readBlank reads a device's accounts once, and reports whether nothing was ever written
// into them.
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

// pread fills buf with what the file has at an offset.
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

// readAccounts reads a device's accounts: their phases, all of them, and the phases
// again. An account whose phase has moved on is read again by itself.
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

// readAccount reads one account until it does not change meanwhile, or marks it.
func (c *copier) readAccount(device, slot int) error {
	a := &c.r.m.Accounts[device][slot]
	at := accountOffset(device, slot)
	for range abi.ReadTries {
		if c.tries == 0 || c.r.budgetLeft != nil && !c.r.budgetLeft() {
			break
		}
		c.tries--
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

// samePhase reports whether what was read between the two stayed as it is: from phase 0
// to 1 the copy that counts is not written.
func samePhase(before, after uint64) bool { return before|abi.PhaseB == after|abi.PhaseB }

// copyLimits reads the limits this region goes by, as openLimits maps them.
func (r *Region) copyLimits() error {
	fd, beside, err := r.openBeside()
	if err != nil {
		return err
	}
	r.limits, r.limitsAt = &r.m.Limits, r.path
	if fd < 0 {
		return nil
	}
	defer unix.Close(fd) // no locks are held on this one
	page, err := checkLimits(fd, beside, r.owner)
	if err != nil {
		return err
	}
	r.limits, r.limitsAt = page, beside
	return nil
}

// lockOnly says which processes live by their locks alone: what a slot says of its owner
// is the job's to write, and asking for it in /proc can be made to take for ever. A
// process that has lost both its locks, the second of which no close reaches, shows as dead
// until it has taken the first again.
type lockOnly struct {
	kernel
	holders *holders
}

// holder returns the PID that the kernel names only where that process has the lock, and
// not one that was given its PID since.
func (k lockOnly) holder(slot int) int {
	if _, pid := k.named(slot); k.holders.has(pid, slotByte(slot, 0).Start) {
		return pid
	}
	return 0
}

// named returns whether a slot is locked, and which PID the kernel names for it. A look
// without a budget says that it is locked, and by no PID: a failure to ask is not an answer.
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
		return 0 // ours, and the kernel does not name our own locks
	}
	if locked, _ := k.named(slot); locked || k.kept(slot) {
		return 0
	}
	return abi.CauseUnseen
}

// Locked reports whether a process has any of a region's bytes locked, as each member of
// its job has: whatever the file holds, of whatever version it is. A file that cannot be
// asked counts as locked.
func Locked(path string) bool {
	f, err := openFile(path, false, false, 0)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrSymlink) && !errors.Is(err, ErrNotRegular)
	}
	defer f.close()
	for slot := range f.held {
		if f.held[slot].Load() != 0 {
			return true // ours, which the kernel does not name
		}
	}
	return f.locked()
}

// locked reports whether another process has a byte of the file locked.
func (f *file) locked() bool { return LockedFD(f.number()) }

// Locked reports whether another process has any of the region's bytes locked.
func (r *Region) Locked() bool { return r.file != nil && r.file.locked() }

// CheckRemovable returns nil for a file in the folder dir that was made as a region and of
// which no process has a byte locked.
func CheckRemovable(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// Closing it drops this process's locks on the file: it must not be a member.
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

// IsSlotByte reports whether an offset is that of a byte which the owner of a slot locks.
func IsSlotByte(at int64) bool {
	return at >= slotsOffset && at < slotsOffset+abi.Slots*slotSize && (at-slotsOffset)%slotSize == 0
}

// AskAgain lets LockedBy, in a process that is no member, ask the kernel anew what processes have
// locked: it asks once for each process until then.
func (r *Region) AskAgain() {
	if k, is := r.alive.(lockOnly); is {
		k.holders.forget()
	}
}

// LockedBy returns the PID of the process that has a slot's byte locked, as this process
// sees it, by the kernel's word: 0 where there is none, or where it cannot be seen. To a
// process that is no member, only one whose descriptors have the lock is named.
func (r *Region) LockedBy(slot int) int {
	if uint(slot) >= abi.Slots || r.file == nil {
		return 0
	}
	if gen := r.file.held[slot].Load(); gen != 0 && gen == abi.Status(atomic.LoadUint64(&r.m.Status[slot])).Gen() {
		return self().pid
	}
	return max(r.alive.holder(slot), 0)
}
