package region

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
)

// keep locks a slot's second byte by an open file of its own, as libration.so does, until
// the function that it returns is called.
func keep(t *testing.T, r *Region, slot int) (release func()) {
	t.Helper()
	// Closed at the end only: to close one drops this process's record locks.
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	l := filesByte(slot, unix.F_WRLCK)
	must(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l))
	return func() {
		l := filesByte(slot, unix.F_UNLCK)
		must(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l))
	}
}

// A process that is gone is not dead while an open file keeps what it held, to a member of the
// job and to others.
func TestKept(t *testing.T) {
	r := open(t, MiB)
	const slot = 7
	st := abi.MakeStatus(1, abi.SlotActive)
	atomic.StoreUint64(&r.m.Header.HighWater, slot+1)
	atomic.StoreUint64(&r.m.Status[slot], uint64(st))
	atomic.StoreUint64(&r.m.Slots[slot].PIDNS, self().pidns)
	atomic.StoreUint64(&r.m.Slots[slot].PID, 1<<22+1) // beyond the largest PID
	release := keep(t, r, slot)
	look := func(who string, r *Region, dead, ending bool) {
		t.Helper()
		all, err := r.Processes()
		must(t, err)
		expect.True(t, len(all) == 1 && all[0].Dead == dead && all[0].Ending == ending, who, all)
	}
	outside, err := OpenReadOnly(r.path)
	must(t, err)
	defer outside.Close()
	look("a member", r, false, true)
	look("another process", outside, false, true)
	n, err := r.Reap()
	expect.True(t, n == 0 && err == nil, "reaped", n, err)
	release()
	look("a member, once it is free", r, true, false)
	look("another process, once it is free", outside, true, false)
	n, err = r.Reap()
	expect.True(t, n == 1 && err == nil, "reaped", n, err)
}

// A free slot whose second byte is locked is another process's still.
func TestClaimPassesOverKept(t *testing.T) {
	r := open(t, MiB)
	release := keep(t, r, 0)
	s := claim(t, r)
	expect.True(t, s.Index() != 0, "took a slot that an open file keeps")
	must(t, s.Leave())
	release()
	atomic.StoreUint64(&r.m.Header.Ticket, 0)
	s = claim(t, r)
	expect.Equal(t, s.Index(), 0, "took slot")
}

// An orderly end is no death, and the next claim frees the slot.
func TestLeft(t *testing.T) {
	r, mortals := overHeap(t)
	atomic.StoreUint64(&r.limits.Device[0].Memory, uint64(abi.MakeLimit(MiB)))
	for range abi.ClaimWindow {
		s := claim(t, r)
		must(t, s.Charge(0, abi.Data, 512))
		atomic.StoreUint64(&r.m.Slots[s.Index()].Left, s.status.Gen())
	}
	n, err := r.Reap()
	expect.True(t, n == 0 && err == nil && r.Used(0) == abi.ClaimWindow*512,
		"of processes that said that they end, and have not", n, "were reaped", err)
	for slot := range abi.ClaimWindow {
		mortals.kill(slot)
	}
	s := claim(t, r)
	expect.True(t, s.Index() < abi.ClaimWindow, "took slot", s.Index(), "those of processes that have left are not freed")
	n, err = r.Reap()
	must(t, err)
	expect.True(t, n == abi.ClaimWindow-1 && r.Used(0) == 0, "reaped", n, r.Used(0), "bytes are left")
	deaths, err := r.Deaths()
	must(t, err)
	c, err := r.Counters()
	must(t, err)
	expect.True(t, len(deaths) == 0 && c.Reaped == 0, len(deaths), "orderly ends are deaths", c.Reaped, "are counted")
}

// A mark is for one owner of a slot, not for the next, and for a short time unless it has none.
func TestToldSlot(t *testing.T) {
	r, mortals := overHeap(t)
	var deaths uint64
	now, unmarked := time.Now().Unix(), int64(-1)
	for _, c := range []struct {
		at     int64
		deaths uint64
	}{{now, 0}, {unmarked, 1}, {now - 3600, 1}, {now - 5, 0}, {0, 0}, {unmarked, 1}} {
		atomic.StoreUint64(&r.m.Header.Ticket, 0)
		s := claim(t, r)
		if c.at != unmarked {
			atomic.StoreUint64(&r.m.Slots[s.Index()].Told, uint64(abi.MakeTold(s.status.Gen(), c.at)))
		}
		deaths += c.deaths
		expect.Equal(t, s.Index(), 0, "took slot")
		mortals.kill(0)
		n, err := r.Reap()
		expect.True(t, n == 1 && err == nil, "reaped", n, err)
		counters, err := r.Counters()
		expect.True(t, counters.Reaped == deaths && err == nil, "deaths", counters.Reaped, "of one marked at", c.at, err)
		mortals.gone = map[int]bool{}
	}
}

// Fork children are found by the page that they map, and nobody else is.
func TestKeptBy(t *testing.T) {
	r := open(t, MiB)
	f, err := os.OpenFile(r.path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	const slot = 3
	page, err := unix.Mmap(int(f.Fd()), slot*int64(os.Getpagesize()), os.Getpagesize(), unix.PROT_NONE, unix.MAP_SHARED)
	must(t, err)
	defer func() { must(t, unix.Munmap(page)) }()
	always := func() bool { return true }
	got := r.KeptBy(slot, always)
	expect.True(t, len(got) == 1 && got[0] == os.Getpid(), "kept by", got, "not by", os.Getpid())
	got = r.KeptBy(slot+1, always)
	expect.Equal(t, len(got), 0, "another slot is kept by", got)
	got = r.KeptBy(slot, func() bool { return false })
	expect.Equal(t, len(got), 0, "without a budget: kept by", got)
}

func TestMapsPage(t *testing.T) {
	key, path := inode{unix.Mkdev(0, 0x19), 1042}, filepath.Join("/run", "region")
	for text, want := range map[string]bool{
		"7f12-7f13 ---s 00003000 00:19 1042    /run/region\n":           true,
		"7f12-7f13 ---s 00003000 00:20 7    /run/region\n":              true, // a stacked file system
		"7f12-7f13 ---s 00003000 00:19 1042    /run/region (deleted)\n": true,
		"7f12-7f13 ---s 00003000 00:20 7    /run/region2\n":             false,
		"7f12-7f13 ---s 00004000 00:19 1042    /run/region\n":           false,
		"7f12-7f13 rw-s 00003000 00:19 1042    /run/region\n":           false,
		"7f12-7f13 ---p 00003000 00:19 1042    /run/region\n":           false,
		"":                                     false,
		strings.Repeat("x", 1<<20):             false,
		"7f12-7f13 ---s " + strconv.Itoa(3000): false,
	} {
		if got := mapsPage(strings.NewReader(text), 0x3000, key, path); got != want {
			t.Errorf("%.80q: %v", text, got)
		}
	}
}
