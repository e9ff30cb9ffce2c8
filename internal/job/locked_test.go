package job

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/region"
)

// slotOffset is that of a slot's byte.
func slotOffset(t testing.TB, n int) int64 {
	t.Helper()
	for at := int64(0); at < region.FileSize; at++ {
		if region.IsSlotByte(at) {
			if n--; n < 0 {
				return at
			}
		}
	}
	t.Fatal("there is no such slot")
	return 0
}

// Only locks for writing of one byte where slots are may be of regions.
func TestParseLocks(t *testing.T) {
	first, second := slotOffset(t, 0), slotOffset(t, 1)
	text := fmt.Sprintf(`1: POSIX  ADVISORY  WRITE 41 00:19:1042 %[1]d %[1]d
2: POSIX  ADVISORY  WRITE 42 00:19:1042 %[2]d %[2]d
2: -> POSIX  ADVISORY  WRITE 99 00:19:1 %[1]d %[1]d
3: POSIX  ADVISORY  READ 43 00:19:2 %[1]d %[1]d
4: OFDLCK ADVISORY  WRITE -1 00:19:3 %[1]d %[1]d
5: FLOCK  ADVISORY  WRITE 44 00:19:4 0 EOF
6: POSIX  ADVISORY  WRITE 45 00:19:5 %[1]d %[2]d
7: POSIX  ADVISORY  WRITE 46 00:19:6 7 7
8: POSIX  ADVISORY  WRITE 41 fd:0a:1042 %[1]d %[1]d
9: POSIX  ADVISORY  WRITE 41 nonsense %[1]d %[1]d
10: POSIX  ADVISORY  WRITE -5 00:19:7 %[1]d %[1]d
`, first, second)
	want := []LockedFile{{FileID{unix.Mkdev(0, 0x19), 1042}, []int{41, 42}}, {FileID{unix.Mkdev(0xfd, 0x0a), 1042}, []int{41}}}
	got := parseLocks([]byte(text))
	expect.True(t, reflect.DeepEqual(got, want), got, want)
}

// Whatever the list holds, no more is taken than the bounds allow.
func FuzzParseLocks(f *testing.F) {
	f.Add([]byte("1: POSIX  ADVISORY  WRITE 41 00:19:1042 20480 20480\n"))
	f.Add([]byte("1: -> POSIX"))
	f.Fuzz(func(t *testing.T, text []byte) {
		files := parseLocks(text)
		for _, l := range files {
			expect.True(t, len(l.PIDs) != 0 && len(l.PIDs) <= maxLockedPIDs && l.PIDs[0] > 0, l)
		}
	})
}

// endless is a list that has no end.
type endless struct{ reads int }

func (e *endless) Read(p []byte) (int, error) {
	e.reads++
	return copy(p, "1: POSIX  ADVISORY  WRITE 4711 00:19:1042 20480 20480\n"), nil
}

// A list that somebody has made long is read up to a bound, and until the reader has no more
// time.
func TestReadUntil(t *testing.T) {
	end := make(chan struct{})
	text, all, err := readUntil(&endless{}, 1000, end)
	expect.True(t, !all && err == nil && len(text) >= 1000 && len(text) <= 1100, len(text), "bytes, all", all, err)
	text, all, err = readUntil(strings.NewReader("short"), 1000, end)
	expect.True(t, all && err == nil && string(text) == "short", text, "all", all, err)
	close(end)
	e := &endless{}
	text, all, err = readUntil(e, 1000, end)
	expect.True(t, !all && err == nil && len(text) == 0 && e.reads == 0, len(text), "bytes in", e.reads, "reads, all", all, err)
}

// A list with more files than are taken is not called whole, and a user who has thousands locked hides
// no other's.
func TestManyLocks(t *testing.T) {
	const eve, ada = 61001, 61002
	asked := map[int]int{}
	owner := func(pid int) int {
		if asked[pid]++; pid == 4712 {
			return ada
		}
		return eve
	}
	var text strings.Builder
	at := slotOffset(t, 0)
	for i := range maxLockedFile {
		fmt.Fprintf(&text, "%d: POSIX  ADVISORY  WRITE 4711 00:19:%d %d %d\n", i, 1000+i, at, at)
	}
	files, all := divideLocked(parseLocks([]byte(text.String())), maxLockedFile, owner)
	expect.True(t, all && len(files) == maxLockedFile && len(asked) == 0, len(files), "files, all", all)
	fmt.Fprintf(&text, "1: POSIX  ADVISORY  WRITE 4713 00:19:6 %d %d\n", at, at)
	fmt.Fprintf(&text, "1: POSIX  ADVISORY  WRITE 4712 00:19:7 %d %d\n", at, at) // the last of all
	files, all = divideLocked(parseLocks([]byte(text.String())), maxLockedFile, owner)
	expect.True(t, !all && len(files) == maxLockedFile && slices.ContainsFunc(files, func(f LockedFile) bool { return f.ID.ino == 7 }),
		"two more", len(files), "files, all", all)
	expect.Equal(t, asked[4711], 1, "questions to a process")
}

func TestParseUID(t *testing.T) {
	for text, want := range map[string]bool{"0": true, "65534": true, "065534": false, "+65534": false, "-1": false, "": false, "x": false} {
		_, is := parseUID(text)
		expect.Equal(t, is, want, "parseUID(", text, ") is")
	}
}

// A lock that is held all the time is found, however many others come and go. The kernel's list takes several reads then,
// and it continues each at a number of the list, not at an entry.
func TestLockedFilesWhileOthersChange(t *testing.T) {
	at := slotOffset(t, 0)
	lock := func(f *os.File, kind int16, at int64) {
		err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: kind, Start: at, Len: 1})
		expect.OK(t, err)
	}
	file := func() *os.File {
		f, err := os.CreateTemp(t.TempDir(), "")
		expect.OK(t, err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	const held, others = 20, 400 // some 60 bytes each: the others are several pages
	want := map[FileID]bool{}
	for range held {
		f := file()
		var st unix.Stat_t
		expect.OK(t, unix.Fstat(int(f.Fd()), &st))
		lock(f, unix.F_WRLCK, at)
		want[FileOf(&st)] = true
	}
	var group sync.WaitGroup
	stop := make(chan struct{})
	defer group.Wait()
	defer close(stop)
	change := file()
	group.Go(func() {
		for n := int64(0); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			for i := range int64(others) {
				lock(change, unix.F_WRLCK, 2*i)
			}
			lock(change, unix.F_UNLCK, 2*(n%others))
			lock(change, unix.F_WRLCK, 2*(n%others))
			for i := range int64(others) {
				lock(change, unix.F_UNLCK, 2*i)
			}
		}
	})
	for range 50 {
		files, all, err := LockedFiles(nil)
		expect.OK(t, err)
		found := 0
		for _, f := range files {
			if want[f.ID] {
				found++
			}
		}
		expect.True(t, found == held || !all, found, "of", held, "files that were locked all the time were found")
	}
}
