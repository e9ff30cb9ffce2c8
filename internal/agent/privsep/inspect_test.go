package privsep

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/region"
)

// inspected begins a parent that answers questions, and returns the reader's end and the parent's result.
func inspected(t *testing.T) (*net.UnixConn, <-chan error) {
	t.Helper()
	own, file, err := pair(unix.SOCK_SEQPACKET)
	expect.OK(t, err)
	defer file.Close()
	conn, err := net.FileConn(file)
	expect.OK(t, err)
	ended := make(chan error, 1)
	go func() { ended <- inspect(own, listenAt("")) }()
	t.Cleanup(func() { _, _ = conn.Close(), own.Close() })
	return conn.(*net.UnixConn), ended
}

// The parent answers what it is asked, and refuses what is no question about a process.
func TestInspector(t *testing.T) {
	conn, ended := inspected(t)
	i := newInspector(conn)
	maps, err := i.OpenMaps(os.Getpid())
	expect.OK(t, err)
	defer maps.Close()
	file, err := os.CreateTemp(t.TempDir(), "region")
	expect.OK(t, err)
	defer file.Close()
	var st unix.Stat_t
	expect.OK(t, unix.Fstat(int(file.Fd()), &st))
	key := region.FileKey{Dev: uint64(st.Dev), Ino: st.Ino}
	expect.OK(t, unix.FcntlFlock(file.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 7, Len: 1}))
	got := i.Locks(os.Getpid(), key, 7, 1000)
	expect.True(t, len(got.Ranges) == 1 && got.Ranges[0] == [2]int64{7, 7}, got)
	root, path, err := i.OpenRoot(os.Getpid(), key)
	expect.OK(t, err)
	_ = unix.Close(root)
	expect.Equal(t, path, file.Name())
	_, _, err = i.OpenRoot(os.Getpid(), region.FileKey{Dev: key.Dev, Ino: 1 << 60}) // not open
	expect.True(t, err != nil, "the root of a process that does not have the file open")
	_, err = i.OpenMaps(1 << 30)
	expect.True(t, errors.Is(err, unix.ENOENT), err)
	for _, q := range []question{{Kind: askMaps, PID: -1}, {Kind: "mem", PID: os.Getpid()}, {Kind: askListen}} {
		_, err := i.ask(q)
		expect.True(t, err != nil && strings.Contains(err.Error(), "refused"), q, err)
	}
	_ = conn.Close()
	expect.OK(t, <-ended)
	_, err = i.OpenMaps(os.Getpid())
	expect.True(t, err != nil, "an answer of a parent that has ended")
}

// What is no question, or too long for one, is the end of the reader.
func TestBrokenQuestion(t *testing.T) {
	for _, packet := range []string{"mem", strings.Repeat(" ", maxPacket) + "{}"} {
		conn, ended := inspected(t)
		_, err := conn.Write([]byte(packet))
		expect.OK(t, err)
		err = <-ended
		expect.True(t, errors.Is(err, ErrBroken), err)
	}
}
