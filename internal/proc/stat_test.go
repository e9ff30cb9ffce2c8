package proc

import (
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

func TestParseStat(t *testing.T) {
	const text = "7 (a) S 9 (b) R 42 7 7 0 -1 4194560 3000 0 0 0 250 50 0 0 20 0 1 0 8711 5000000 12 18446744073709551615 1"
	s, err := parseStat([]byte(text))
	expect.OK(t, err)
	expect.Equal(t, s, Stat{State: 'R', Parent: 42, CPU: 3 * time.Second, Start: 8711, RSS: 12 * uint64(os.Getpagesize())})
	for _, bad := range []string{"", "7", "7 (a", "7 (a) R 42", text[:80]} {
		_, err := parseStat([]byte(bad))
		expect.True(t, err != nil, "parsed", bad)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (a) R 1 1 1 0 -1 0 0 0 0 0 9223372036854775807 9223372036854775807 0 0 20 0 1 0 1 1 9223372036854775807"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseStat(b)
		expect.True(t, err != nil || s.CPU >= 0 && s.Age() >= 0, s)
	})
}

// A process that works uses a processor, and memory that it has touched.
func TestReadStat(t *testing.T) {
	touched := slices.Repeat([]byte{1}, 64<<20)
	for began := time.Now(); time.Since(began) < 50*time.Millisecond; {
		touched[0]++
	}
	s, err := ReadStat(os.Getpid())
	expect.OK(t, err)
	expect.True(t, s.Parent == os.Getppid() && s.CPU >= 20*time.Millisecond && s.CPU < time.Hour && s.RSS >= uint64(len(touched)) && s.Age() < time.Hour, s)
	start, err := Started(os.Getpid())
	expect.True(t, err == nil && start == s.Start && start <= Now(), start, err)
}

func TestCommand(t *testing.T) {
	own, cut := Command(os.Getpid(), 1<<20), Command(os.Getpid(), 3)
	expect.True(t, slices.Equal(own, os.Args), own)
	expect.True(t, len(cut) == 1 && cut[0] == os.Args[0][:3], cut)
	expect.True(t, Command(-1, 100) == nil, "a process that is not there has a command line")
}

func TestStopped(t *testing.T) {
	cmd := exec.Command("cat")
	if _, err := cmd.StdinPipe(); err != nil { // it ends with the pipe, or with us
		t.Fatal(err)
	}
	expect.OK(t, cmd.Start())
	pid := cmd.Process.Pid
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	for _, c := range []struct {
		signal unix.Signal
		wait   int
		want   bool
	}{{unix.SIGSTOP, unix.WUNTRACED, true}, {unix.SIGCONT, unix.WCONTINUED, false}} {
		expect.OK(t, unix.Kill(pid, c.signal))
		_, err := unix.Wait4(pid, nil, c.wait, nil)
		expect.OK(t, err)
		s, err := ReadStat(pid)
		expect.OK(t, err)
		expect.Equal(t, s.Stopped(), c.want, "after", c.signal, "stopped is")
	}
	_, err := ReadStat(-1)
	expect.True(t, err != nil, "a process that is not there has a state")
}
