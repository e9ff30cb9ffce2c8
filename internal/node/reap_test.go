package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
	"ration/machine"
)

// envDie names the region in which this program is to take a slot, and die.
const envDie = "RATION_TEST_REAP_DIE"

func TestMain(m *testing.M) {
	if path := os.Getenv(envDie); path != "" {
		fmt.Println(die(path)) // only if it did not
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func die(path string) error {
	r, err := region.Open(path, region.Options{})
	if err != nil {
		return err
	}
	s, err := r.Claim("dies")
	if err != nil {
		return err
	}
	return errors.Join(s.Charge(0, abi.Data, 1<<20), unix.Kill(os.Getpid(), unix.SIGKILL))
}

// deadIn makes a job in which a process died with a mebibyte.
func deadIn(t *testing.T, name string) job.Job {
	t.Helper()
	path, err := job.MakeFolder(name)
	expect.OK(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envDie+"="+path)
	out, err := cmd.CombinedOutput()
	expect.Must(t, err != nil && len(out) == 0, "a process that was to die", err, out)
	return job.Job{Name: name, Path: path}
}

func checkDead(t *testing.T, j machine.Job) {
	t.Helper()
	expect.True(t, j.Err() == nil && j.ReadOnly && len(j.Reaped) == 0 && len(j.Processes) == 1 && j.Processes[0].State == machine.Dead && j.Devices[0].Used == 1<<20,
		"want a dead process that holds a mebibyte, got", j)
}

func checkReaped(t *testing.T, j machine.Job) {
	t.Helper()
	expect.True(t, j.Err() == nil && !j.ReadOnly && len(j.Processes) == 0 && len(j.Reaped) == 1 && j.Reaped[0].Name == "dies" && j.Reaped[0].Holdings[0].Total == 1<<20 && j.Devices[0].Used == 0,
		"want a process that was reaped, got", j)
}

func TestReadJob(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	j := deadIn(t, "train")
	checkDead(t, ReadJob(j, Options{ReadOnly: true}))
	expect.True(t, job.Ended(j, time.Now()), "a job whose only process is dead has not ended")
	reaped := ReadJob(j, Options{})
	checkReaped(t, reaped)
	expect.True(t, reaped.Name == "train", "it is named", reaped.Name)
	again := ReadJob(j, Options{})
	expect.True(t, !again.ReadOnly && len(again.Reaped) == 0, "reaped twice", again)
	missing := ReadJob(job.Job{Path: j.Path + "x"}, Options{})
	expect.True(t, missing.Err() != nil, "a region that is not there was read")
}

// Return returns what the dead hold, and makes no region that is not there, or not complete.
func TestReturn(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	j := deadIn(t, "train")
	expect.OK(t, os.Chmod(j.Path, 0o622)) // others can write it, so that it is only read
	expect.Equal(t, Return(j.Path), nil)
	checkDead(t, ReadJob(j, Options{ReadOnly: true}))
	expect.OK(t, os.Chmod(j.Path, 0o600))
	expect.Equal(t, Return(j.Path), nil)
	after := ReadJob(j, Options{ReadOnly: true})
	expect.True(t, after.Err() == nil && len(after.Processes) == 0 && after.Devices[0].Used == 0 && len(after.Deaths) == 1, after)
	path := j.Path + "x"
	expect.True(t, Return(path) != nil, "a region that is not there was reaped")
	expect.OK(t, os.WriteFile(path, nil, 0o600))
	text, err := os.ReadFile(path)
	e := Return(path)
	expect.True(t, e != nil && err == nil && len(text) == 0, "a region that is not made yet was reaped", e, err)
}

func TestRead(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	t.Setenv(job.EnvRegion, "")
	deadIn(t, "a")
	deadIn(t, "b")
	m, err := Read(Options{})
	expect.Must(t, err == nil && len(m.Jobs) == 2, m, err)
	for _, j := range m.Jobs {
		checkReaped(t, j)
	}
}

// Where it may not write, the dead stay, and are shown.
func TestMayNotWrite(t *testing.T) {
	t.Setenv(job.EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	j := deadIn(t, "train")
	expect.OK(t, os.Chmod(j.Path, 0o400))
	if os.Geteuid() != 0 {
		checkDead(t, ReadJob(j, Options{}))
		return
	}
	// Root may write what it likes, except on a file system that is read-only.
	dir := filepath.Dir(j.Path)
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its mounts with it
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skipf("making a mount namespace: %v", err)
	}
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount(dir, dir, "", unix.MS_BIND, ""),
		unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Skipf("mounting read-only: %v", err)
	}
	checkDead(t, ReadJob(j, Options{}))
	expect.Equal(t, unix.Unmount(dir, 0), nil)
}
