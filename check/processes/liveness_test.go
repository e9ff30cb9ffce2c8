package processes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/region"
	"ration/internal/safepath"
)

// A killed process that is still a zombie counts as dead.
func TestZombieIsReaped(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		survivor := join(t, mix, 0, path, mib)
		victim := join(t, mix, 1, path)
		victim.OK("charge 0 data %d", mib)
		victim.KillToZombie()
		survivor.OK("charge 0 data %d", mib)
		expect.Equal(t, survivor.OK("counters").Int("reaped"), 1, "slots reaped, want the zombie's")
		victim.Kill()
		finish(t, path, survivor)
	})
}

// The end of a process that was told to end is no death. Another process's is.
func TestToldToEnd(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		survivor := join(t, mix, 0, path, mib)
		told, other, stopped := join(t, mix, 1, path), join(t, mix, 1, path), join(t, mix, 1, path)
		dir, err := safepath.OpenFolder(filepath.Dir(path))
		expect.Must(t, err == nil, "opening the folder:", err)
		defer unix.Close(dir)
		err = region.Tell(dir, filepath.Base(path), path, false, func(p region.Process) bool { return p.Seen == told.PID() })
		expect.True(t, err == nil, "marking the process:", err)
		err = region.Tell(dir, filepath.Base(path), path, true, func(p region.Process) bool { return p.Seen == stopped.PID() })
		expect.True(t, err == nil, "marking the process for good:", err)
		for _, p := range []*worker{told, stopped} {
			p.OK("charge 0 data %d", mib) // it may still work for a while
			p.Kill()
			survivor.OK("charge 0 data %d", mib)
			survivor.OK("return 0 data %d", mib)
			expect.Equal(t, survivor.OK("counters").Int("reaped"), 0, "deaths of a process that was told to end")
		}
		other.OK("charge 0 data %d", mib)
		other.Kill()
		survivor.OK("charge 0 data %d", mib)
		expect.Equal(t, survivor.OK("counters").Int("reaped"), 1, "deaths of a process that was not")
		finish(t, path, survivor)
	})
}

// A process that lost its lock by closing files that it did not open keeps its bytes
// until it dies.
func TestLostLock(t *testing.T) {
	testenv.NeedStart(t)
	for _, order := range []string{"touch", "lose", "lose FILE"} {
		t.Run(order, func(t *testing.T) {
			eachMix(t, func(t *testing.T, mix impls) {
				path := newPath(t)
				order := strings.ReplaceAll(order, "FILE", filepath.Join(filepath.Dir(path), "other"))
				other := join(t, mix, 0, path, mib)
				careless := join(t, mix, 1, path)
				careless.OK("charge 0 data %d", mib)
				careless.OK("%s", order)
				expect.Must(t, !locked(t, path, careless.PID()), "the lock was not lost")
				other.reaps(0)
				other.Ask("charge 0 data 1").want("refused", "a charge while a living process holds everything")
				careless.OK("return 0 data %d", mib)
				careless.OK("charge 0 module %d", mib)
				careless.Kill()
				other.OK("charge 0 data %d", mib)
				finish(t, path, other)
			})
		})
	}
}

// A lock that was lost is taken again, if the descriptor is still open.
func TestLockComesBack(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		path := newPath(t)
		w := join(t, mix, 0, path, mib)
		w.OK("touch")
		expect.Must(t, !locked(t, path, w.PID()), "the lock was not lost")
		for ops := 0; !locked(t, path, w.PID()); {
			w.OK("churn 0 1 4096")
			ops += w.OK("stop").Int("ops")
			expect.Must(t, ops <= 100_000, "no lock after", ops, "operations")
		}
	})
}

// locked returns whether a process holds a record lock on a file, by /proc/locks.
func locked(t *testing.T, path string, pid int) bool {
	t.Helper()
	var st unix.Stat_t
	expect.OK(t, unix.Stat(path, &st))
	list, err := os.ReadFile("/proc/locks")
	expect.OK(t, err)
	for line := range strings.Lines(string(list)) {
		// 1: POSIX  ADVISORY  WRITE 1234 08:01:5678 0 0
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "POSIX" || f[4] != fmt.Sprint(pid) {
			continue
		}
		if at := strings.Split(f[5], ":"); at[len(at)-1] == fmt.Sprint(st.Ino) {
			return true
		}
	}
	return false
}
