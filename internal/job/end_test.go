package job

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/region"
	"ration/internal/safepath"
)

// operatorsJob makes a job in which a process was, whose limits are an operator's, and returns the offset of a free slot.
func operatorsJob(t *testing.T, name string) (j Job, free int) {
	t.Helper()
	j, slot := used(t, name)
	slot.Leave()
	var limits region.Limits
	limits.Memory[0] = abi.MakeLimit(1 << 30)
	expect.OK(t, region.WriteLimitsFile(j.Path, limits))
	free = 0
	for !region.IsSlotByte(int64(free)) {
		free++
	}
	return j, free
}

// handed starts a process of no job that has a file with a lock of an open file, as of a descriptor that a tenant sent it.
func handed(t *testing.T, path string, lock unix.Flock_t) (pid int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	defer f.Close()
	expect.OK(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	outsider := exec.Command("sleep", "1000")
	outsider.ExtraFiles = []*os.File{f}
	expect.OK(t, outsider.Start())
	t.Cleanup(func() { _, _ = outsider.Process.Kill(), outsider.Wait() })
	return outsider.Process.Pid
}

// A tenant hands the files of an operator's job to a process outside, which locks them. The kernel names that process, and
// the operator removes the job all the same; what the process has of it is worth nothing then.
func TestHostileHolderKeepsNoJob(t *testing.T) {
	for name, hold := range map[string]func(j Job, free int) (pid int){
		"a free slot": func(j Job, free int) int {
			_, pid := startMember(t, j.Path, free)
			return pid
		},
		"a lock of an open region": func(j Job, free int) int {
			return handed(t, j.Path, unix.Flock_t{Type: unix.F_WRLCK, Start: int64(free), Len: 1})
		},
		"a lock of the launcher's": func(j Job, _ int) int {
			l, err := acquire(j.Name, exclusive)
			expect.OK(t, err)
			l.Release()
			return handed(t, filepath.Join(l.Folder, aliveName), wholeFile(shared))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
			j, free := operatorsJob(t, "theirs")
			limits, err := os.Open(j.Path + region.LimitsSuffix)
			expect.OK(t, err)
			defer limits.Close()
			pid := hold(j, free)
			if err := Remove(j, true); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d (", pid)) {
				t.Errorf("got %v, want the name of process %d", err, pid)
			}
			left, err := ForceRemove(j)
			expect.OK(t, err)
			expect.True(t, len(left) == 1 && left[0].Seen == pid, "left are", left, "want process", pid)
			text := LeftText(j, left)
			expect.True(t, strings.Contains(text, fmt.Sprintf("pid %d (", pid)), "it says", text)
			if entries, err := os.ReadDir(Folder()); err != nil || len(entries) != 0 {
				t.Errorf("left in the folder: %v, %v", entries, err)
			}
			expect.True(t, ended(t, limits), "a process that has the limits open would get more")
			// The next of that name is another job, of which the outsider has nothing.
			l, err := Create(j.Name)
			expect.OK(t, err)
			l.Release()
			expect.True(t, !Running(l.Job), "the next job is in use")
		})
	}
}

// ended reports whether an open file of limits allows nothing more.
func ended(t *testing.T, f *os.File) bool {
	t.Helper()
	copied := filepath.Join(t.TempDir(), RegionName)
	text := make([]byte, 1<<20)
	n, _ := f.ReadAt(text, 0)
	expect.OK(t, errors.Join(os.WriteFile(copied, nil, 0o600), os.WriteFile(copied+region.LimitsSuffix, text[:n], 0o644)))
	l, err := region.OpenOperatorLimits(copied)
	expect.OK(t, err)
	limit, err := l.Limit(0)
	return err == nil && limit.Limited() && limit.Ceiling() == 0
}

// A job whose limits are its own to write is not removed under a process: it would go on under the limit beside the next.
func TestForceRemoveKeepsUsersJobs(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	j, free := operatorsJob(t, "own")
	expect.OK(t, os.Remove(j.Path+region.LimitsSuffix))
	end, _ := startMember(t, j.Path, free)
	if _, err := ForceRemove(j); !errors.Is(err, ErrLiving) || !safepath.Exists(j.Path) {
		t.Errorf("got %v", err)
	}
	end()
	if left, err := ForceRemove(j); err != nil || len(left) != 0 {
		t.Errorf("without the process: %v, %v", left, err)
	}
}

// What a ForceRemove that was cut short has moved aside is removed by the next.
func TestForceRemoveCutShort(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	j, _ := operatorsJob(t, "first")
	expect.OK(t, os.Mkdir(filepath.Join(Folder(), endedPrefix+"1"), 0o700))
	expect.OK(t, os.Rename(filepath.Dir(j.Path), filepath.Join(Folder(), endedPrefix+"1", "first")))
	if jobs, err := List(); err != nil || len(jobs) != 0 {
		t.Errorf("listed are %v, %v", jobs, err)
	}
	j, free := operatorsJob(t, "second")
	startMember(t, j.Path, free)
	_, err := ForceRemove(j)
	expect.OK(t, err)
	if entries, err := os.ReadDir(Folder()); err != nil || len(entries) != 0 {
		t.Errorf("left in the folder: %v, %v", entries, err)
	}
}
