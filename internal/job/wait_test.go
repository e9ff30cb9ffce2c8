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

	"ration/check/expect"
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
	expect.OK(t, errors.Join(err, err2, member.Start()))
	end = sync.OnceFunc(func() { _, _ = stdin.Close(), member.Wait() })
	t.Cleanup(end)
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	expect.Must(t, line == "ready\n", "the member said", line)
	return end, member.Process.Pid
}

// All processes with locks on a file are found, in any order of the kernel's list.
func TestHolders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	expect.OK(t, os.WriteFile(path, make([]byte, 100), 0o600))
	want := map[int]bool{}
	for _, at := range []int{60, 40, 50, 70} {
		_, pid := startMember(t, path, at)
		want[pid] = true
	}
	got := holders(path)
	for _, p := range got {
		delete(want, p.Seen)
	}
	expect.True(t, len(got) == 4 && len(want) == 0, got, "and not", want)
}

// waiting returns when the kernel lists a process that waits for a lock of a file, by a line with an arrow.
func waiting(t *testing.T, path string, from string) {
	t.Helper()
	var st unix.Stat_t
	expect.OK(t, unix.Stat(path, &st))
	file := fmt.Appendf(nil, "%02x:%02x:%d %s", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino, from)
	for range 6000 {
		list, err := os.ReadFile("/proc/locks")
		expect.OK(t, err)
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
		end, _, err := Wait(j)
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

// locked returns an exclusive lock on a new job, in a folder of jobs of its own.
func locked(t *testing.T) *Lock {
	t.Helper()
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	l, err := Create("train")
	expect.OK(t, err)
	return l
}

// begin makes the region of a job, records its command and shares the lock.
func begin(t *testing.T, l *Lock, command ...string) {
	t.Helper()
	r, err := region.Open(l.Job.Path, region.Options{})
	expect.OK(t, err)
	expect.OK(t, errors.Join(l.WriteInfo(Info{Command: command}), r.Close(), l.Share()))
}

// Wait returns after the job has ended, with its status, also if the job is removed by then.
func TestWait(t *testing.T) {
	l := locked(t)
	begin(t, l, "sh", "\x1b[2J")
	alive := filepath.Join(l.Folder, aliveName)
	result := startWait(l.Job)
	waiting(t, alive, fmt.Sprint(waitByte))
	mustWait(t, result)
	expect.True(t, Running(l.Job), "one that waits makes the job look ended")
	expect.OK(t, l.WriteEnd(0, 0))
	mustWait(t, result)
	expect.True(t, l.RemoveIfUnused(), "one that waits keeps the job from being removed")
	w := <-result
	expect.True(t, w.err == nil && w.end != nil && w.end.Status == 0 && w.end.Ended != 0, w.end, w.err)
	_, _, err := Wait(Job{"train", l.Job.Path})
	expect.True(t, errors.Is(err, unix.ENOENT), "waiting for a job that is gone", err)
}

// A job that is being made is waited for until its end, and its status is known. One of which nothing else was made does
// not exist, and of one that was not recorded, how it ended is unknown.
func TestWaitForOneThatIsMade(t *testing.T) {
	l := locked(t)
	looked := make(chan struct{}, 1)
	before := sleep
	sleep = func(d time.Duration) {
		select {
		case looked <- struct{}{}:
		default:
		}
		before(d)
	}
	result := startWait(l.Job)
	select {
	case <-looked: // it has found the lock, and no region
	case <-time.After(10 * time.Second):
		t.Fatal("it did not wait for the job to be made")
	}
	begin(t, l, "false")
	waiting(t, filepath.Join(l.Folder, aliveName), fmt.Sprint(waitByte))
	mustWait(t, result)
	expect.OK(t, l.WriteEnd(3, 0))
	l.Release()
	w := <-result
	sleep = before
	expect.True(t, w.err == nil && w.end != nil && w.end.Status == 3, w.end, w.err)

	l, err := Create("train")
	expect.OK(t, err)
	l.Release()
	_, _, err = Wait(l.Job)
	expect.True(t, errors.Is(err, unix.ENOENT), "a job of which only the lock was made", err)
	l, err = Create("train")
	expect.OK(t, err)
	expect.OK(t, os.WriteFile(l.Job.Path, nil, 0o600))
	l.Release()
	end, launched, err := Wait(l.Job)
	expect.True(t, err == nil && end == nil && launched, end, launched, err)
}

// The next job of the name is another one. If no launcher saw how a job ended, it is unknown.
func TestWaitForOneOfTwo(t *testing.T) {
	first := locked(t)
	begin(t, first, "true")
	result := startWait(first.Job)
	waiting(t, filepath.Join(first.Folder, aliveName), fmt.Sprint(waitByte))
	first.Release()
	second, err := Create("train") // the waiting process does not delay it
	expect.OK(t, err)
	begin(t, second, "true")
	defer second.Release()
	w := <-result
	expect.True(t, w.err == nil && w.end == nil, w.end, w.err)
}

// The same holds if the next job has the lock before the waiting process gets it: here it is never
// released in between.
func TestWaitIsOvertaken(t *testing.T) {
	l := locked(t)
	defer l.Release()
	expect.OK(t, errors.Join(os.WriteFile(l.Job.Path, nil, 0o600), l.Share()))
	result := startWait(l.Job)
	waiting(t, filepath.Join(l.Folder, aliveName), fmt.Sprint(waitByte))
	mustWait(t, result)
	expect.OK(t, errors.Join(l.set(exclusive), l.removeContents(), os.WriteFile(l.Job.Path, nil, 0o600), l.Share()))
	w := <-result
	expect.True(t, w.err == nil && w.end == nil, w.end, w.err)
}

// A process that has joined the job is waited for when the command has ended.
func TestWaitForMember(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	path, err := MakeFolder("train")
	expect.OK(t, err)
	expect.OK(t, os.WriteFile(path, make([]byte, 100), 0o600))
	end, _ := startMember(t, path, 50)
	result := startWait(Job{"train", path})
	waiting(t, path, "50 50") // for that byte alone
	mustWait(t, result)
	end()
	w := <-result
	expect.True(t, w.err == nil && w.end == nil, w.end, w.err)
}

// The lock of a process that has just waited is no use of the job. The next job is made once it is gone.
func TestWaitersLock(t *testing.T) {
	l := locked(t)
	l.Release()
	f, err := os.OpenFile(filepath.Join(l.Folder, aliveName), os.O_RDWR, 0)
	expect.OK(t, err)
	defer f.Close()
	lock := unix.Flock_t{Type: exclusive, Start: waitByte, Len: 1}
	expect.OK(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	expect.True(t, !Running(l.Job), "the job looks as if it ran")
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
	expect.OK(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock))
	expect.Equal(t, <-made, nil)
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
			expect.Equal(t, arg, termtext.Printable(arg), "reaches the reader")
			size += len(arg)
		}
		expect.True(t, size <= 4*maxCommand && (end == nil || end.Status >= 0 && end.Status <= 255 && end.Ended >= 0) && info.Started >= 0,
			size, "bytes", end, info)
	})
}

// A line that its writer did not finish does not count.
func TestParseInfo(t *testing.T) {
	const first, second = `{"command":["sh","-c"],"pid":7,"started":1}` + "\n", `{"status":3,"ended":5}`
	info, end := parseInfo([]byte(first + second))
	expect.True(t, len(info.Command) == 2 && end == nil, info, end)
	_, end = parseInfo([]byte(first + second + "\n"))
	expect.True(t, end != nil && end.Status == 3 && end.Ended == 5, end)
	// Of several commands the first that failed counts, up to the first line that no launcher writes.
	const fine, killed = `{"status":0,"ended":4}` + "\n", `{"status":137,"signal":9,"ended":6}` + "\n"
	for text, want := range map[string]int{fine: 0, fine + second + "\n" + killed: 3, fine + fine + killed: 137, fine + "{\n" + killed: 0, fine + second: 0} {
		_, end = parseInfo([]byte(first + text))
		expect.True(t, end != nil && end.Status == want, text, end)
	}
	// The job has ended with the last of them.
	const left, later = `{"status":3,"ended":5,"left":true}` + "\n", `{"status":0,"ended":9}` + "\n"
	_, end = parseInfo([]byte(first + left + later))
	expect.Equal(t, *end, End{Status: 3, Ended: 9})
	_, end = parseInfo([]byte(first + left))
	expect.Equal(t, *end, End{Status: 3, Ended: 5, Left: true})
	info, _ = parseInfo([]byte(first[:20]))
	expect.True(t, info.Command == nil, info)
	long := make([]string, 5000)
	got := cutCommand(append(long, "end"))
	expect.True(t, len(got) <= maxCommand+1 && got[len(got)-1] == cutArgument, len(got), "arguments")
}

// With the inherited descriptor a command can lock all bytes but the one that Wait waits for, and any
// process of the user can lock the region for reading. Then Wait tries again, more and more rarely.
func TestWaitDoesNotSpin(t *testing.T) {
	l := locked(t)
	begin(t, l)
	handed, err := HandOn(l.Job)
	expect.OK(t, err)
	defer handed.Close()
	l.Release()
	set := func(kind int16, length int64) {
		t.Helper()
		part := unix.Flock_t{Type: kind, Len: length}
		expect.OK(t, unix.FcntlFlock(handed.Fd(), unix.F_OFD_SETLK, &part))
	}
	set(unix.F_UNLCK, 0)
	set(shared, 10)
	alive, err := unix.Open(filepath.Join(l.Folder, aliveName), unix.O_RDWR, 0)
	expect.OK(t, err)
	file, err := unix.Open(l.Job.Path, unix.O_RDONLY, 0)
	expect.OK(t, err)
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
	expect.True(t, err == nil && looks == 6 && len(pauses) == 5, "it has looked", looks, "times, with pauses of", pauses, err)
}
