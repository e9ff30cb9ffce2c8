package privsep

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sessionKeys returns the session keyring of this thread.
func sessionKeys(t *testing.T) int {
	t.Helper()
	id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true)
	if err != nil {
		t.Skipf("this kernel has no keys for this process: %v", err)
	}
	return id
}

// A key of the session is not found by a process that a thread with a new keyring starts.
func TestNewKeyring(t *testing.T) {
	done := make(chan struct{})
	go func() { // on a thread that ends
		defer close(done)
		runtime.LockOSThread()
		before := sessionKeys(t)
		if err := NewKeyring(); err != nil {
			t.Error(err)
		}
		if after := sessionKeys(t); after == before {
			t.Errorf("the session keyring is %d, as before", after)
		}
	}()
	<-done
}

// A descriptor that was left open goes to no process that is started.
func TestCloseOnExec(t *testing.T) {
	if err := unix.Dup3(1, leftOpen, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leftOpen)
	if err := closeOnExec(); err != nil {
		t.Fatal(err)
	}
	if exec.Command("test", "-e", "/proc/self/fd/99").Run() == nil {
		t.Error("a child has it")
	}
}

// What a reader writes cannot move a cursor, and each line comes whole.
func TestLines(t *testing.T) {
	var got [][]byte
	l := &lines{to: writerFunc(func(b []byte) { got = append(got, append([]byte(nil), b...)) })}
	for _, text := range []string{"on", "e\ntwo \x1b[2J\r\n", strings.Repeat("x", 2*maxLogLine) + "\n", "last"} {
		if n, err := l.Write([]byte(text)); n != len(text) || err != nil {
			t.Error(n, err)
		}
	}
	l.end()
	long := strings.Repeat("x", maxLogLine) + "\n"
	want := []string{"one\n", "two ?[2J?\n", long, long, "last\n"}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || string(got[i]) != want[i] {
			t.Fatalf("line %d of %d is not as wanted", i, len(got))
		}
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}
