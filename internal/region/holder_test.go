package region

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/safepath"
)

// A process is looked into once for each copy, however many slots it has, and each of its
// locks is found by whichever descriptor it was taken.
func TestHolderIsLookedIntoOnce(t *testing.T) {
	r := open(t, MiB)
	const slots = 100
	for range slots {
		claim(t, r)
	}
	h := holders{f: r.file}
	h.reset()
	for slot := range slots {
		expect.Must(t, h.has(os.Getpid(), slotByte(slot, 0).Start), "slot", slot, "is not found")
	}
	for slot := slots + 500; slot < slots+600; slot++ {
		expect.True(t, !h.has(os.Getpid(), slotByte(slot, 0).Start), "a lock is found that is not there: on slot", slot)
	}
	expect.True(t, !h.has(os.Getppid(), slotByte(0, 0).Start) && !h.has(-1, 0), "a lock is found that is not there")
	expect.True(t, h.into <= 2, "looked", h.into, "times into two processes")
	h.looks = 0
	h.forget()
	expect.True(t, !h.has(os.Getpid(), slotByte(0, 0).Start), "found without a look")
}

// No process is looked into, and no descriptor looked at, once the budget is spent; and what
// was found before stays found.
func TestHolderBudget(t *testing.T) {
	r := open(t, MiB)
	claim(t, r)
	clock, step := time.Time{}, time.Duration(0)
	h := holders{f: r.file, clock: safepath.Clock{Now: func() time.Time { clock = clock.Add(step); return clock }}}
	h.reset()
	at := slotByte(0, 0).Start
	expect.Must(t, h.has(os.Getpid(), at) && h.into == 1, "with a budget: looked", h.into, "times")
	step = holderBudget
	expect.True(t, h.has(os.Getpid(), at) && !h.has(os.Getppid(), at) && h.into == 1, "without: looked", h.into, "times")
	// A step for each descriptor: no more of them than the budget has steps.
	step = holderBudget / 4
	for range 20 {
		f, err := os.Open(os.DevNull)
		must(t, err)
		defer f.Close()
	}
	h.reset()
	h.has(os.Getpid(), slotByte(700, 0).Start)
	looks := maxHolderLooks - h.looks
	expect.True(t, looks <= libraryFDs+4, looks, "descriptors were looked at")
}

// However many descriptors of the file a process has, a bounded number is looked at.
func TestHolderDescriptors(t *testing.T) {
	r := open(t, MiB)
	claim(t, r)
	for range maxHolderFDs + 100 {
		f, err := os.Open(os.DevNull)
		must(t, err)
		defer f.Close()
	}
	h := holders{f: r.file, budgetLeft: func() bool { return true }}
	h.reset()
	h.has(os.Getpid(), slotByte(700, 0).Start)
	expect.Equal(t, maxHolderLooks-h.looks, maxHolderFDs+libraryFDs, "descriptors were looked at")
}

// A process that has more locks than a region has bytes to lock is not looked at further.
func TestHolderRanges(t *testing.T) {
	var l lockHolding
	l.add(make([]lockRange, maxHolderRanges-1))
	expect.True(t, !l.full && len(l.ranges) == maxHolderRanges-1, len(l.ranges), "full is", l.full)
	l.add(make([]lockRange, 5000))
	expect.True(t, l.full && len(l.ranges) == maxHolderRanges, len(l.ranges), "full is", l.full)
}

// A process with thousands of locks on the file, and hundreds of descriptors of it, is looked
// into once, and at few of them.
func TestHolderOfAFloodOfLocks(t *testing.T) {
	r := open(t, MiB)
	path := r.path
	child := startFlood(t, path, unix.F_RDLCK) // which do not count, and are listed before those that do
	h := holders{f: r.file, budgetLeft: func() bool { return true }}
	h.reset()
	for slot := range 10 {
		at := slotByte(slot, 0).Start
		pid := (lockOnly{kernel{r.file}, &h}).holder(slot)
		expect.True(t, pid == 0 || pid == child, "slot", slot, "is pid", pid, "'s")
		h.has(child, at)
	}
	known := h.found[child]
	expect.True(t, h.into == 1 && known != nil && known.full && len(known.ranges) <= maxHolderRanges,
		"looked", h.into, "times into it", known)
	// Of its 200 descriptors of the file, which each list all of its locks, the first was enough.
	looks := maxHolderLooks - h.looks
	expect.True(t, looks <= libraryFDs+30, looks, "descriptors were looked at")
	// What the kernel names is still named, as what is not confirmed.
	v, err := OpenReadOnly(path)
	must(t, err)
	defer v.Close()
	expect.Equal(t, v.namedPID(3, 0), child, "named is")
	v.SetAskBudget(func() bool { return false })
	got := v.namedPID(3, 0)
	expect.True(t, got == 0 && v.alive.dead(3, nil, abi.MakeStatus(1, abi.SlotActive)) == 0,
		"without a budget: named is", got, "or a process is called dead")
}

// startFlood starts a process with thousands of locks of a kind on a file, and a few for writing,
// and returns its PID. The locks
// belong to the process, so that it must be another one.
func startFlood(t *testing.T, path string, kind int) (pid int) {
	t.Helper()
	child := exec.Command(os.Args[0], "-test.run=^TestHolderFlood$")
	child.Env = append(os.Environ(), "RATION_TEST_FLOOD="+path, fmt.Sprint("RATION_TEST_FLOOD_KIND=", kind))
	in, err := child.StdinPipe()
	must(t, err)
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	t.Cleanup(func() { _ = in.Close(); _ = child.Wait() })
	ready := make([]byte, 6)
	_, err = io.ReadFull(out, ready)
	expect.Must(t, err == nil && string(ready) == "ready\n", "the child says", ready, err)
	return child.Process.Pid
}

// TestHolderFlood is the child that startFlood starts.
func TestHolderFlood(t *testing.T) {
	path := os.Getenv("RATION_TEST_FLOOD")
	if path == "" {
		t.Skip("is run by startFlood")
	}
	kind, err := strconv.Atoi(os.Getenv("RATION_TEST_FLOOD_KIND"))
	must(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	lock := func(at int64, kind int16) {
		l := unix.Flock_t{Type: kind, Start: at, Len: 1}
		must(t, unix.FcntlFlock(f.Fd(), unix.F_SETLK, &l))
	}
	for i := range int64(4000) { // each is a line of its own, as those beside are not locked
		lock(2*i, int16(kind))
	}
	for slot := range 10 {
		lock(slotByte(slot, 0).Start, unix.F_WRLCK)
	}
	for range 200 {
		_, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 200)
		expect.OK(t, err)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// In a flood of locks the kernel is asked for a bounded number of them, none after the budget is
// spent, but always for one: a file that is locked is never taken for one that is not.
func TestLockHoldersBudget(t *testing.T) {
	r := open(t, MiB)
	child := startFlood(t, r.path, unix.F_WRLCK)
	asked := 0
	for _, c := range []struct {
		name     string
		left     func() bool
		looks    int
		least    int // of the questions
		most     int
		verified bool
	}{
		{"with a budget", func() bool { asked++; return true }, maxLockLooks, maxLockLooks / 2, 2 * maxLockLooks, true},
		{"few questions", func() bool { asked++; return true }, 7, 1, 3 * 7, true},
		{"without a budget", func() bool { asked++; return false }, maxLockLooks, 1, 4, false},
	} {
		asked = 0
		h := &holders{f: r.file, budgetLeft: c.left}
		h.reset()
		got := h.all(c.looks)
		expect.True(t, len(got) == 1 && got[0].PID == child && (!got[0].Verified || c.verified), c.name, got, "not pid", child)
		expect.True(t, asked >= c.least && asked <= c.most, c.name, "asked", asked, "times whether something is left")
	}
}

// listsLock reports whether a byte is locked by a process, as far as a descriptor lists it.
func listsLock(fdinfo []byte, pid int, at int64) bool {
	return (&lockHolding{ranges: listedLocks(fdinfo, pid)}).has(at)
}

func TestListsLock(t *testing.T) {
	const other = "pos:\t0\nflags:\t02100002\nmnt_id:\t30\nino:\t1042\n"
	for line, want := range map[string]bool{
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 20480 20480\n":                                                       true,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 0 EOF\n":                                                             true,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 7 7\nlock:\t2: POSIX  ADVISORY  WRITE 4711 00:19:1042 20000 30000\n": true,
		"":                      false,
		"lock:\t1: POSIX\n":     false,
		"lock:\t\nlock:\nlock:": false,
		"lock:\t1: POSIX  ADVISORY  READ 4711 00:19:1042 20480 20480\n":           false,
		"lock:\t1: FLOCK  ADVISORY  WRITE 4711 00:19:1042 0 EOF\n":                false,
		"lock:\t1: OFDLCK ADVISORY  WRITE -1 00:19:1042 0 EOF\n":                  false,
		"lock:\t1: POSIX  ADVISORY  WRITE 4712 00:19:1042 20480 20480\n":          false,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 20481 20481\n":          false,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 0 20479\n":              false,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 twenty EOF\n":           false,
		"lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 0 99999999999999999999": false,
	} {
		expect.Equal(t, listsLock([]byte(other+line), 4711, 20480), want, line)
	}
}
