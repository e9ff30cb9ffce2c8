package job

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/region"
	"ration/internal/termtext"
)

// envMember names a file of which this program is to have a byte locked, as a member of a job
// has, until its input ends.
const (
	envMember = "RATION_TEST_MEMBER"
	envByte   = "RATION_TEST_BYTE" // which
	envComm   = "RATION_TEST_COMM" // its name, if it is to have another
)

func TestMain(m *testing.M) {
	if path := os.Getenv(envMember); path != "" {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		at, err2 := strconv.ParseInt(os.Getenv(envByte), 10, 64)
		if err = errors.Join(err, err2); err == nil {
			err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1})
		}
		if comm := os.Getenv(envComm); comm != "" {
			err = errors.Join(err, os.WriteFile("/proc/self/comm", []byte(comm), 0))
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ready")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startMember starts a process that has a byte of a file locked until end is called.
func startMember(t *testing.T, path string, at int) (end func(), pid int) {
	t.Helper()
	member := exec.Command(os.Args[0])
	member.Env = append(os.Environ(), envMember+"="+path, fmt.Sprint(envByte, "=", at))
	stdin, err := member.StdinPipe()
	stdout, err2 := member.StdoutPipe()
	if err := errors.Join(err, err2, member.Start()); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() { _, _ = stdin.Close(), member.Wait() })
	t.Cleanup(end)
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the member said %q", line)
	}
	return end, member.Process.Pid
}

// All who have bytes of a file locked are found, in whatever order the kernel names them: that
// of the first lock of each.
func TestHolders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	want := map[int]bool{}
	for _, at := range []int{60, 40, 50, 70} {
		_, pid := startMember(t, path, at)
		want[pid] = true
	}
	got := holders(path)
	for _, p := range got {
		delete(want, p.Seen)
	}
	if len(got) != 4 || len(want) != 0 {
		t.Errorf("got %+v, and not %v", got, want)
	}
}

// waiting returns when the kernel lists somebody who waits for a lock of a file: there is a line
// with an arrow for each.
func waiting(t *testing.T, path string, from string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	file := fmt.Appendf(nil, "%02x:%02x:%d %s", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino, from)
	for range 6000 {
		list, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(list) {
			if bytes.Contains(line, []byte("->")) && bytes.Contains(line, file) {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("nobody waits for %s", path)
}

type waited struct {
	end *End
	err error
}

func startWait(j Job) chan waited {
	out := make(chan waited, 1)
	go func() {
		end, err := Wait(j)
		out <- waited{end, err}
	}()
	return out
}

func mustWait(t *testing.T, result chan waited) {
	t.Helper()
	select {
	case w := <-result:
		t.Fatalf("it waited no longer: %+v", w)
	default:
	}
}

// created returns a job in a folder of its own, and its region.
func created(t *testing.T) (*Lock, *region.Region) {
	t.Helper()
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	l, err := Create("train")
	if err != nil {
		t.Fatal(err)
	}
	r, err := region.Open(l.Job.Path, region.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return l, r
}

// Wait ends when the job has, and knows how, though the job is removed by then.
func TestWait(t *testing.T) {
	l, r := created(t)
	if err := errors.Join(l.WriteInfo([]string{"sh", "\x1b[2J"}), r.Close(), l.Share()); err != nil {
		t.Fatal(err)
	}
	alive := filepath.Join(l.Folder, aliveName)
	result := startWait(l.Job)
	waiting(t, alive, fmt.Sprint(waitByte))
	mustWait(t, result)
	if !Running(l.Job) {
		t.Error("one that waits makes the job look ended")
	}
	if err := l.WriteEnd(0, 0); err != nil {
		t.Fatal(err)
	}
	mustWait(t, result)
	if !l.RemoveIfUnused() {
		t.Error("one that waits keeps the job from being removed")
	}
	if w := <-result; w.err != nil || w.end == nil || w.end.Status != 0 || w.end.Ended == 0 {
		t.Errorf("got %+v, %+v", w.end, w.err)
	}
	if _, err := Wait(Job{"train", l.Job.Path}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("waiting for a job that is gone: %v", err)
	}
}

// The next job of the name is another one. How one ended that nobody saw is not known.
func TestWaitForOneOfTwo(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	make := func() *Lock {
		l, err := Create("train")
		if err != nil {
			t.Fatal(err)
		}
		r, err := region.Open(l.Job.Path, region.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(l.WriteInfo([]string{"true"}), r.Close(), l.Share()); err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := make()
	result := startWait(first.Job)
	waiting(t, filepath.Join(first.Folder, aliveName), fmt.Sprint(waitByte))
	first.Release()
	second := make() // which the one that waits must not hinder
	defer second.Release()
	if w := <-result; w.err != nil || w.end != nil {
		t.Errorf("got %+v, %+v", w.end, w.err)
	}
}

// So it is where the next one has the lock before the one that waits: here, without letting go of
// it in between.
func TestWaitIsOvertaken(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	l, err := Create("train")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if err := errors.Join(os.WriteFile(l.Job.Path, nil, 0o600), l.Share()); err != nil {
		t.Fatal(err)
	}
	result := startWait(l.Job)
	waiting(t, filepath.Join(l.Folder, aliveName), fmt.Sprint(waitByte))
	mustWait(t, result)
	if err := errors.Join(l.set(exclusive), l.removeContents(), os.WriteFile(l.Job.Path, nil, 0o600), l.Share()); err != nil {
		t.Fatal(err)
	}
	if w := <-result; w.err != nil || w.end != nil {
		t.Errorf("got %+v, %+v", w.end, w.err)
	}
}

// A process that has joined the job is waited for when the command has ended.
func TestWaitForMember(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	path, err := MakeFolder("train")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	end, _ := startMember(t, path, 50)
	result := startWait(Job{"train", path})
	waiting(t, path, "50 50") // for that byte alone
	mustWait(t, result)
	end()
	if w := <-result; w.err != nil || w.end != nil {
		t.Errorf("got %+v, %+v", w.end, w.err)
	}
}

// What has the waiting byte locked, at the end of its wait, is nobody who uses the job, and the
// next job is made as soon as it is gone.
func TestWaitersLock(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	l, err := Create("train")
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	f, err := os.OpenFile(filepath.Join(l.Folder, aliveName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lock := unix.Flock_t{Type: exclusive, Start: waitByte, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	if Running(l.Job) {
		t.Error("the job looks as if it ran")
	}
	made := make(chan error, 1)
	go func() {
		l, err := Create("train")
		if err == nil {
			l.Release()
		}
		made <- err
	}()
	select {
	case err := <-made:
		t.Fatalf("it was made while the byte was locked: %v", err)
	case <-time.After(20 * time.Millisecond): // no proof that it waits, but it must not fail
	}
	lock.Type = unix.F_UNLCK
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	if err := <-made; err != nil {
		t.Error(err)
	}
}

func FuzzParseInfo(f *testing.F) {
	f.Add([]byte(`{"command":["sh"],"pid":7,"started":1}` + "\n" + `{"status":3,"ended":5}` + "\n"))
	f.Add([]byte("{}\n{\"status\":-1}\n"))
	f.Add([]byte(`{"command":["sh"],"started":-1}` + "\n" + `{"status":3,"ended":5}` + "\n"))
	f.Add([]byte(`{"command":["sh"],"started":1}` + "\n" + `{"status":3,"ended":-5}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		info, end := parseInfo(text)
		size := 0
		for _, arg := range info.Command {
			if arg != termtext.Printable(arg) {
				t.Errorf("%q reaches the reader", arg)
			}
			size += len(arg)
		}
		if size > 4*maxCommand || end != nil && (end.Status < 0 || end.Status > 255 || end.Ended < 0) || info.Started < 0 {
			t.Errorf("%d bytes, %+v, %+v", size, end, info)
		}
	})
}

// A line that its writer did not finish does not count.
func TestParseInfo(t *testing.T) {
	const first, second = `{"command":["sh","-c"],"pid":7,"started":1}` + "\n", `{"status":3,"ended":5}`
	if info, end := parseInfo([]byte(first + second)); len(info.Command) != 2 || end != nil {
		t.Errorf("got %+v, %+v", info, end)
	}
	if _, end := parseInfo([]byte(first + second + "\n")); end == nil || end.Status != 3 || end.Ended != 5 {
		t.Errorf("got %+v", end)
	}
	if info, _ := parseInfo([]byte(first[:20])); info.Command != nil {
		t.Errorf("got %+v", info)
	}
	long := make([]string, 5000)
	if got := cutCommand(append(long, "end")); len(got) > maxCommand+1 || got[len(got)-1] != cutArgument {
		t.Errorf("got %d arguments", len(got))
	}
}

// A command that was handed the descriptor by which its job is in use can lock just what Wait does not
// wait for; and any process of the user's can lock the region for reading. Wait looks again, less and
// less often, and does not use up a processor.
func TestWaitDoesNotSpin(t *testing.T) {
	l, r := created(t)
	if err := errors.Join(r.Close(), l.Share()); err != nil {
		t.Fatal(err)
	}
	handed, err := HandOn(l.Job)
	if err != nil {
		t.Fatal(err)
	}
	defer handed.Close()
	l.Release()
	set := func(kind int16, length int64) {
		t.Helper()
		part := unix.Flock_t{Type: kind, Len: length}
		if err := unix.FcntlFlock(handed.Fd(), unix.F_OFD_SETLK, &part); err != nil {
			t.Fatal(err)
		}
	}
	set(unix.F_UNLCK, 0)
	set(shared, 10)
	alive, err := unix.Open(filepath.Join(l.Folder, aliveName), unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	file, err := unix.Open(l.Job.Path, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var pauses []time.Duration
	sleep = func(d time.Duration) {
		if pauses = append(pauses, d); len(pauses) == 5 {
			set(unix.F_UNLCK, 0)
		}
	}
	defer func() { sleep = time.Sleep }()
	looks := 0
	err = waitUnused(alive, file, func() bool {
		looks++
		return looks < 1000 // another is there: it has spun
	})
	if err != nil || looks != 6 || len(pauses) != 5 {
		t.Errorf("it has looked %d times, with pauses of %v: %v", looks, pauses, err)
	}
}
