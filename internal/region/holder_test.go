package region

import (
	"os"
	"testing"
)

// A process is looked into once for each copy, however many slots it has, and each of its
// locks is found by whichever descriptor it was taken.
func TestHolderIsLookedIntoOnce(t *testing.T) {
	r := open(t, MiB)
	const slots = 100
	for range slots {
		claim(t, r)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	h := holders{f: r.file}
	h.reset()
	for slot := range slots {
		if !h.has(os.Getpid(), slotByte(slot, 0).Start) {
			t.Fatalf("slot %d is not found", slot)
		}
	}
	if h.has(os.Getpid(), slotByte(slots+500, 0).Start) || h.has(os.Getppid(), slotByte(0, 0).Start) || h.has(-1, 0) {
		t.Error("a lock is found that is not there")
	}
	// This process's descriptors, and those of its parent, of which most are none of ours.
	if looks := maxHolderLooks - h.looks; looks > 2*(len(fds)+libraryFDs)+200 {
		t.Errorf("%d looks at %d descriptors", looks, len(fds))
	}
	h.looks = 0
	h.found = map[int]lockHolding{}
	if h.has(os.Getpid(), slotByte(0, 0).Start) {
		t.Error("found without a look")
	}
}

// listsLock reports whether a byte is locked by a process, as far as a descriptor lists it.
func listsLock(fdinfo []byte, pid int, at int64) bool {
	return lockHolding{ranges: listedLocks(fdinfo, pid)}.has(at)
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
		if got := listsLock([]byte(other+line), 4711, 20480); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}
