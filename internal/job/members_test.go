package job

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

func TestIsInherited(t *testing.T) {
	const lock = "lock:\t1: OFDLCK ADVISORY  READ -1 00:1c:5 0 EOF\n"
	for info, want := range map[string]bool{
		"pos:\t0\nflags:\t0100000\nmnt_id:\t30\n" + lock:                       true,
		"pos:\t0\nflags:\t02100000\n" + lock:                                   true,
		"pos:\t0\nflags:\t0100002\n" + lock:                                    false, // a launcher's or a waiter's, open for writing
		"pos:\t0\nflags:\t0100000\n":                                           false, // a reader's
		"flags:\t0100000\nlock:\t1: OFDLCK ADVISORY  WRITE -1 00:1c:5 0 EOF\n": false,
		"flags:\t0100000\nlock:\t1: POSIX  ADVISORY  READ 7 00:1c:5 0 EOF\n":   false,
		lock: false, "": false,
	} {
		expect.Equal(t, isInherited(minInheritedFD, []byte(info)), want, info)
	}
	expect.True(t, isInherited(minInheritedFD-1, []byte("flags:\t0100000\n"+lock)), "one that was inherited where few files may be open")
	expect.True(t, !isInherited(minInheritedFD-1, []byte("flags:\t02100000\n"+lock)), "the lock of a run, of its launcher")
}

// Stop ends a process that inherited the job's lock, and not one that only has the file open.
func TestStopEndsTheCommandOnly(t *testing.T) {
	l := locked(t)
	begin(t, l, "sleep")
	reader := exec.Command("sleep", "60")
	f, err := os.Open(filepath.Join(l.Folder, aliveName))
	expect.OK(t, err)
	reader.ExtraFiles = []*os.File{f}
	expect.OK(t, reader.Start())
	t.Cleanup(func() { _, _ = reader.Process.Kill(), reader.Wait() })
	stop, err := l.Inherit()
	expect.OK(t, err)
	command := exec.Command("sleep", "60")
	expect.OK(t, command.Start())
	stop()
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	got, err := Stop(l.Job, time.Minute)
	expect.True(t, err == nil && got.Killed == 0 && len(got.Left) == 0, got, err)
	expect.True(t, len(got.Asked) == 1 && got.Asked[0].PID == command.Process.Pid, got.Asked)
	<-ended
	expect.Equal(t, unix.Kill(reader.Process.Pid, 0), nil)
	expect.True(t, !slices.ContainsFunc(Members(l.Job), func(Member) bool { return true }), "a reader is a member")
	l.Release()
}
