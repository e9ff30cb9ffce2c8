package job

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
)

func TestLock(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	_, err := Join("train")
	expect.Must(t, errors.Is(err, ErrNoJob), "joined a job that does not exist", err)
	l, err := Create("train")
	expect.OK(t, err)
	_, err = Create("train")
	expect.True(t, errors.Is(err, ErrInUse), "created twice", err)
	expect.OK(t, errors.Join(os.WriteFile(l.Job.Path, nil, 0o600), l.Share()))
	other, err := Join("train")
	expect.OK(t, err)
	l.Release()
	expect.True(t, Running(other.Job), "not running after the first of two released it")
	_, err = Create("train")
	expect.True(t, errors.Is(err, ErrInUse), "created while another process has joined", err)
	other.Release()
	expect.True(t, !Running(l.Job), "running after all released it")
	// Create removes what the ended job left.
	again, err := Create("train")
	expect.OK(t, err)
	expect.True(t, !safepath.Exists(again.Job.Path), "the old region is still there")
	expect.True(t, again.RemoveIfUnused() && !safepath.Exists(again.Folder), "its folder is still there")
}

func TestLockIsInherited(t *testing.T) {
	l := locked(t)
	expect.OK(t, l.Share())
	stop, err := l.Inherit()
	expect.OK(t, err)
	child := exec.Command("cat")
	stdin, err := child.StdinPipe()
	expect.OK(t, err)
	expect.OK(t, child.Start())
	stop()
	expect.True(t, !l.RemoveIfUnused(), "removed while the child runs")
	expect.True(t, Running(l.Job), "not running while the child runs")
	expect.OK(t, errors.Join(stdin.Close(), child.Wait()))
	expect.True(t, !Running(l.Job), "running after all released it")
}

// Who uses a job is named by the PID of its launcher as long as that runs.
func TestLauncherThatHasEnded(t *testing.T) {
	l := locked(t)
	defer l.RemoveIfUnused()
	start, err := proc.Started(os.Getpid())
	expect.OK(t, err)
	for text, want := range map[string]string{
		fmt.Sprintf("%d %d\n", os.Getpid(), start):   fmt.Sprintf("in use by a command that pid %d started", os.Getpid()),
		fmt.Sprintf("%d %d\n", os.Getpid(), start+1): "in use by processes of a command whose ration run has ended", // its PID is another's
		fmt.Sprintf("%d %d\n", 1<<30, start):         "in use by processes of a command whose ration run has ended",
		"":                                           "in use (choose",
		"x 1\n":                                      "in use (choose",
		"1\n":                                        "in use (choose",
		"1 2 3 4":                                    "in use (choose",
	} {
		expect.OK(t, errors.Join(l.file.Truncate(0), os.WriteFile(l.file.Name(), []byte(text), 0o600)))
		_, err := Create("train")
		expect.True(t, errors.Is(err, ErrInUse) && strings.Contains(err.Error(), want), text, err, want)
		err = Remove(l.Job, true)
		expect.True(t, errors.Is(err, ErrInUse) && strings.Contains(err.Error(), "pid") == strings.Contains(want, "pid"),
			text, "removing it", err)
	}
}

func TestPrune(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	living, err := Create("living")
	expect.OK(t, err)
	defer living.RemoveIfUnused()
	if path, err := MakeFolder("by-hand"); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 2*Kept - 1 {
		if i == 2*Kept-2 {
			Prune() // not yet: with the others there are twice as many
		}
		l, err := Create(fmt.Sprint("ended-", i))
		expect.OK(t, err)
		then := time.Unix(int64(i), 0)
		expect.OK(t, os.Chtimes(filepath.Join(l.Folder, aliveName), then, then))
		l.Release()
	}
	Prune()
	left, err := os.ReadDir(Folder())
	expect.True(t, err == nil && len(left) == Kept+2, len(left), err, Kept+2)
	for _, e := range left {
		expect.True(t, e.Name() != "ended-0" && e.Name() != fmt.Sprint("ended-", Kept-2), e.Name(), "is still there")
	}
}

func FuzzParseLauncher(f *testing.F) {
	for _, text := range []string{"", "4711 42\n", "4711\n", " 1", "-1 -1", "99999999999999999999 1", "1 1 1", "\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		pid, start, err := parseLauncher(text)
		again, restart, e := parseLauncher(fmt.Sprintf("%d %d\n", pid, start))
		expect.True(t, err != nil || e == nil && again == pid && restart == start, text, pid, start, "then", again, restart, e)
	})
}

// Who still has the limits of a job that was removed, or whose name another job has now, gets
// nothing more by them.
func TestRemovedJobGrantsNothing(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	for how, remove := range map[string]func(Job) error{
		"removed": func(j Job) error { return Remove(j, true) },
		"replaced": func(j Job) error {
			l, err := Create(j.Name)
			if err == nil {
				l.Release()
			}
			return err
		},
	} {
		path, err := MakeFolder("gone")
		expect.OK(t, err)
		var limits region.Limits
		limits.Memory[0], limits.Memory[1] = abi.MakeLimit(1<<30), abi.Unlimited
		// Whose limits count is said by whose the region is.
		expect.OK(t, errors.Join(os.WriteFile(path, nil, 0o600), region.WriteLimitsFile(path, limits)))
		// As the library has it, whatever becomes of the name.
		f, err := os.Open(path + region.LimitsSuffix)
		expect.OK(t, err)
		defer f.Close()
		expect.OK(t, remove(Job{"gone", path}))
		if _, err := os.Lstat(path + region.LimitsSuffix); err == nil {
			t.Errorf("%s: the file is still there", how)
		}
		for d := range abi.Devices {
			var word [8]byte
			_, err := f.ReadAt(word[:], observer.Offset("Limits", "Device", d, "Memory")-observer.Offset("Limits"))
			expect.OK(t, err)
			l := abi.Limit(binary.LittleEndian.Uint64(word[:]))
			expect.True(t, l.Limited() && l.Ceiling() == 0, how, "device", d, "still has", l.Ceiling(), "units")
		}
	}
}
