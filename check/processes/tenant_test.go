package processes

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/observer"
	"ration/check/testenv"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
	"ration/machine"
)

// What a tenant writes into its own region is a claim. These tests write it, and look at
// it with what an operator uses.

// tenant is a file that its owner writes as it likes.
type tenant struct {
	t *testing.T
	f *os.File
}

func newTenant(t *testing.T, path string) tenant {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return tenant{t, f}
}

func (w tenant) write(bytes []byte, path ...any) {
	w.t.Helper()
	_, err := w.f.WriteAt(bytes, observer.Offset(path...))
	expect.OK(w.t, err)
}

func (w tenant) word(value uint64, path ...any) {
	w.t.Helper()
	w.write(binary.LittleEndian.AppendUint64(nil, value), path...)
}

func (w tenant) read(path ...any) uint64 {
	w.t.Helper()
	var b [8]byte
	_, err := w.f.ReadAt(b[:], observer.Offset(path...))
	expect.OK(w.t, err)
	return binary.LittleEndian.Uint64(b[:])
}

// slot writes an active slot that belongs to no process.
func (w tenant) slot(slot int, pid, uid uint64, name string) {
	w.t.Helper()
	w.word(uint64(abi.MakeStatus(1, abi.SlotActive)), "Status", slot)
	w.word(pid, "Slots", slot, "PID")
	w.word(uid, "Slots", slot, "UID")
	w.word(uint64(abi.MakeHostPID(1, int(pid))), "Slots", slot, "HostPID")
	b := make([]byte, abi.NameLen)
	copy(b, name)
	w.write(b, "Slots", slot, "Name")
}

// joined makes a job in which another process holds a mebibyte.
func joined(t *testing.T) (string, *worker) {
	t.Helper()
	path := newPath(t)
	w := join(t, goOnly(), 0, path, gib)
	w.OK("charge 0 data %d", mib)
	return path, w
}

// readJob reads a job, which must have so many processes.
func readJob(t *testing.T, path string, processes int) machine.Job {
	t.Helper()
	j, err := machine.ReadJob(path)
	expect.Must(t, err == nil && len(j.Processes) == processes, len(j.Processes), "processes", err, processes)
	return j
}

// The identity of a process comes from the kernel. A claim that only its slot makes is
// shown as a claim, and blocks nothing.
func TestTenantClaimsToBeAnother(t *testing.T) {
	path, w := joined(t)
	real := readJob(t, path, 1).Processes[0]
	expect.True(t, real.Verified && (real.HostPID == w.PID() || !region.OnHost()), "its PID is", w.PID(), "and it is shown as", real)
	bad := newTenant(t, path)
	bad.word(1, "Slots", real.Slot, "PID")
	bad.word(12345, "Slots", real.Slot, "UID")
	bad.word(uint64(abi.MakeHostPID(1, 1)), "Slots", real.Slot, "HostPID")
	// A second slot names process 2, a kernel thread on the host, which ends only with the machine.
	bad.slot(real.Slot+1, 2, 0, "kthreadd")
	bad.word(uint64(real.Slot+2), "Header", "HighWater")
	for _, p := range readJob(t, path, 2).Processes {
		expect.True(t, p.Slot != real.Slot || p.Verified && p.PID == real.PID && p.UID == real.UID && p.User == real.User && (!region.OnHost() || p.HostPID == real.HostPID),
			"its owner is shown as", p)
		expect.True(t, p.Slot == real.Slot || !p.Verified && p.State == machine.Dead && p.User == "0", "a claim is shown as", p)
	}
	// The operator is told to end the process that runs, and no other.
	err := job.Remove(job.Job{Path: path}, true)
	expect.True(t, err != nil && strings.Contains(err.Error(), "pid "+strconv.Itoa(w.PID())) && !strings.Contains(err.Error(), "kthreadd"),
		"removing it", err)
	w.Kill()
	expect.Equal(t, job.Remove(job.Job{Path: path}, false), nil, "when its process has ended")
}

// A flood of slots costs a bounded look: no user is looked up, and the kernel is asked
// about no process.
func TestTenantFloodsTheSlots(t *testing.T) {
	path, _ := joined(t)
	bad := newTenant(t, path)
	for slot := 1; slot < abi.Slots; slot++ {
		bad.slot(slot, uint64(os.Getpid()), uint64(100000+slot), "\x1b]0;owned\x07\u202egnp.exe\u009b2J\x7f")
	}
	bad.word(1<<60, "Header", "HighWater")
	j := readJob(t, path, abi.Slots)
	out, err := json.Marshal(j)
	expect.OK(t, err)
	for _, c := range []string{"\x1b", "\x07", "\u202e", "\u009b", "\x7f", `\u001b`, `\u0007`} {
		expect.True(t, !bytes.Contains(out, []byte(c)), c, "reaches the reader")
	}
	for _, p := range j.Processes[1:] {
		expect.Must(t, !p.Verified && p.User == strconv.Itoa(p.UID), "a claim is shown as", p)
	}
}

// Whatever a tenant does to its file while an operator's tools look at it, they go on.
func TestTenantScribbles(t *testing.T) {
	testenv.NeedFaultAddress(t) // limits are written through a mapping
	path, w := joined(t)
	good, err := os.ReadFile(path)
	expect.OK(t, err)
	bad := newTenant(t, path)
	stop := make(chan struct{})
	var scribbler sync.WaitGroup
	scribbler.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-stop:
				return
			default:
			}
			switch random.IntN(6) {
			case 0:
				_ = bad.f.Truncate(0)
			case 1:
				_ = bad.f.Truncate(int64(len(good) / 2))
			case 2:
				_ = bad.f.Truncate(int64(len(good)))
			case 3: // as it was, so that the looks come far
				_, _ = bad.f.WriteAt(good, 0)
			default:
				at := random.Int64N(int64(len(good) - 4096))
				rubbish := make([]byte, 1+random.IntN(4096))
				for i := range rubbish {
					rubbish[i] = byte(random.Uint32())
				}
				_, _ = bad.f.WriteAt(rubbish, at)
			}
		}
	})
	looked := 0
	for range rounds(400) {
		if _, err := machine.ReadJob(path); err == nil {
			looked++
		}
		if r, err := region.OpenForLimits(path); err == nil {
			_ = r.SetLimit(0, abi.MakeLimit(gib))
			_ = r.Refresh()
			_, _ = r.Holdings(0, nil)
			_ = r.Close()
		}
		_ = region.Locked(path)
	}
	close(stop)
	scribbler.Wait()
	t.Logf("%d looks found a region in order", looked)
	w.Kill() // whose mapping may be gone
}

// A file of another kind in a region's place makes no reader wait, and is not read.
func TestTenantPlantsFiles(t *testing.T) {
	elsewhere, _ := joined(t)
	dir := t.TempDir()
	for name, plant := range map[string]func(string) error{
		"a pipe":            func(path string) error { return unix.Mkfifo(path, 0o666) },
		"a folder":          func(path string) error { return os.Mkdir(path, 0o777) },
		"a link":            func(path string) error { return os.Symlink(elsewhere, path) },
		"a link to itself":  func(path string) error { return os.Symlink(path, path) },
		"an endless device": func(path string) error { return os.Symlink("/dev/zero", path) },
		"an empty file":     func(path string) error { return os.WriteFile(path, nil, 0o666) },
		"a large file":      func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o666), os.Truncate(path, 1<<40)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			expect.OK(t, plant(path))
			allFail(t, path, "reading", "for limits", "removing")
		})
	}
	_, err := machine.ReadJob(elsewhere)
	expect.Equal(t, err, nil, "the other job's region")
}

// looks are what an operator does with a region.
var looks = map[string]func(path string) error{
	"reading":    func(path string) error { _, err := machine.ReadJob(path); return err },
	"for limits": func(path string) error { r, err := region.OpenForLimits(path); closeIf(r); return err },
	"joining":    func(path string) error { r, err := region.Open(path, region.Options{}); closeIf(r); return err },
	"removing":   func(path string) error { return job.Remove(job.Job{Path: path}, true) },
	"asking if locked": func(path string) error {
		if region.Locked(path) {
			return unix.EAGAIN
		}
		return nil
	},
}

func closeIf(r *region.Region) {
	if r != nil {
		_ = r.Close()
	}
}

// allFail checks that each of these looks at a file fails.
func allFail(t *testing.T, path string, names ...string) {
	t.Helper()
	for _, name := range names {
		expect.True(t, looks[name](path) != nil, name, "it was done")
	}
}

// A lease on a region, which the file's owner can take, makes no reader wait: the kernel would
// let it wait for 45 s, and then open the file.
func TestTenantLeasesTheRegion(t *testing.T) {
	path := newPath(t)
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	_ = r.Close()
	bad := newTenant(t, path)
	if _, err := unix.FcntlInt(bad.f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("no leases here: %v", err) // some file systems have none, nor where another process has the file open
	}
	allFail(t, path, slices.Collect(maps.Keys(looks))...) // had one been done, it would have waited
}

// The kernel names a lock's holder by the PID of the process that took it, which may be
// another process's by now, as the lock lives on in a child that shares its descriptors.
// Here a thread with descriptors of its own has the lock: the process that the kernel names
// does not have it either.
func TestTenantLeavesALock(t *testing.T) {
	path, w := joined(t)
	slot := readJob(t, path, 1).Processes[0].Slot + 1
	bad := newTenant(t, path)
	bad.slot(slot, 1, 0, "victim")
	bad.word(uint64(slot+1), "Header", "HighWater")
	stop, locked := make(chan struct{}), make(chan error)
	var holder sync.WaitGroup
	hold := func() {
		locked <- func() error {
			if err := unix.Unshare(unix.CLONE_FILES); err != nil {
				return err
			}
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			l := unix.Flock_t{Type: unix.F_WRLCK, Start: observer.Offset("Slots", slot), Len: 1}
			return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &l)
		}()
		<-stop
	}
	holder.Go(func() {
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			hold() // never unlocked: the thread ends with this function, and its descriptors with it
			return
		}
		// What the kernel shows of a process is of its first thread, which this is: another has to do it.
		var other sync.WaitGroup
		other.Go(func() { runtime.LockOSThread(); hold() })
		other.Wait()
		runtime.UnlockOSThread()
	})
	t.Cleanup(func() { close(stop); holder.Wait() })
	expect.OK(t, <-locked)
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: observer.Offset("Slots", slot), Len: 1}
	err := unix.FcntlFlock(bad.f.Fd(), unix.F_GETLK, &l)
	expect.Must(t, err == nil && int(l.Pid) == os.Getpid(), "the kernel names", l.Pid, os.Getpid(), "(", err, ")")
	for _, p := range readJob(t, path, 2).Processes {
		expect.True(t, (p.Slot != slot || !p.Verified && p.State == machine.Live) && (p.Slot == slot || p.Verified), "shown as", p)
		// What the kernel names comes before what the slot says, as a claim like that.
		expect.True(t, p.Slot != slot || (!region.OnHost() || p.HostPID == os.Getpid()) && (region.OnHost() || p.PID == os.Getpid()),
			"the kernel names", os.Getpid(), "and it is shown as", p)
	}
	err = job.Remove(job.Job{Path: path}, true)
	expect.True(t, err != nil && strings.Contains(err.Error(), "pid "+strconv.Itoa(w.PID())) && !strings.Contains(err.Error(), "pid "+strconv.Itoa(os.Getpid())+" (victim"), "removing it", err)
}

// A process that can open a region can lock its slots' bytes without joining. The error of a
// claim then says so, and names that process.
func TestTenantLocksTheSlots(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		w := start(t, mix, 0)
		w.OK("open %s", path)
		bad := newTenant(t, path)
		for _, kind := range []int16{unix.F_WRLCK, unix.F_RDLCK} {
			all := unix.Flock_t{Type: kind}
			expect.OK(t, unix.FcntlFlock(bad.f.Fd(), unix.F_SETLK, &all))
			got := w.Ask("claim w")
			got.want("locked", "a claim of slots that another process has locked")
			text := fmt.Sprint(got)
			expect.True(t, mix.of(0).name != "go" || strings.Contains(text, fmt.Sprintf("pid %d (end it)", os.Getpid())),
				"it does not name the stranger", text)
			all.Type = unix.F_UNLCK
			expect.OK(t, unix.FcntlFlock(bad.f.Fd(), unix.F_SETLK, &all))
		}
		w.OK("claim w")
	})
}

// A tenant that writes zero into the words of a device does not hide what its processes hold:
// the device is marked, since the two differ.
func TestTenantZeroesTheLedger(t *testing.T) {
	path, w := joined(t)
	w.OK("charge 3 data %d", mib)
	bad := newTenant(t, path)
	bad.word(0, "Devices", 3, "LedgerWord")
	bad.word(0, "Devices", 3, "Peak")
	j := readJob(t, path, 1)
	held := j.Processes[0].Holdings
	expect.Must(t, len(held) == 2 && held[1].Total == mib, held)
	for _, d := range j.Devices {
		expect.True(t, (d.Device != 3 || d.Inexact && d.Used == 0) && (d.Device != 0 || !d.Inexact), d)
	}
}

// A slot that names a process with an endless list of mappings costs a bounded look: a region
// that was not found in the first part of the list counts as mapped.
func TestTenantNamesALargeProcess(t *testing.T) {
	long := t.TempDir()
	for len(long) < 3800 {
		long = filepath.Join(long, strings.Repeat("x", 200))
		expect.OK(t, os.Mkdir(long, 0o755))
	}
	f, err := os.Create(filepath.Join(long, "mapped"))
	expect.OK(t, err)
	defer f.Close()
	expect.OK(t, f.Truncate(4096))
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		w := join(t, mix, 0, path, gib)
		w.OK("charge 0 data %d", mib) // which takes up the account of a device
		var st unix.Stat_t
		expect.OK(t, unix.Stat("/proc/self/ns/pid", &st))
		bad := newTenant(t, path)
		reap := func() int { return w.OK("reap").Int("slots") }
		plant := func() {
			const slot = 5
			bad.slot(slot, uint64(os.Getpid()), uint64(os.Getuid()), "large")
			bad.word(st.Ino, "Slots", slot, "PIDNS")
			bad.word(slot+1, "Header", "HighWater")
		}
		plant()
		n := reap()
		expect.Must(t, n == 1, n, "slots reaped where one names a process that does not map the region")
		for range 20 << 20 / len(long) {
			mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			expect.OK(t, err)
			defer func() { _ = unix.Munmap(mem) }()
		}
		plant()
		expect.Equal(t, reap(), 0, "slots reaped after a look that cannot have come to an end")
	})
}

// One process may have all slots; each of them is verified.
func TestTenantHasAllSlots(t *testing.T) {
	path, w := joined(t)
	for range abi.Slots - 2 { // all but its own, and the fence's
		w.OK("claim again")
	}
	for _, p := range readJob(t, path, abi.Slots-1).Processes {
		expect.Must(t, p.Verified && (!region.OnHost() || p.HostPID == w.PID()), "shown as", p)
	}
}
