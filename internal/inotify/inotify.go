// Package inotify tells when something happens in folders, also in those of other users.
//
// It is not github.com/fsnotify/fsnotify, which does not tell that a file was opened, or closed after
// writing, and takes folders by their paths only. A process that watches the folders of tenants opens
// them first (safepath), and watches what it has opened.
package inotify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Watcher is a set of watched folders. All methods but Read may be called at any time.
type Watcher struct {
	file *os.File
	conn syscall.RawConn // of file: its calls fail after Close, when the number may be another file's
	buf  [64 << 10]byte  // of Read
}

// Event is something that happened in a folder.
type Event struct {
	Watch int    // as Add returned it
	Mask  uint32 // unix.IN_*
	Name  string // of the file, or "" for the folder itself
}

// New returns a watcher of no folder.
func New() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching folders: %w", err)
	}
	w := &Watcher{file: os.NewFile(uintptr(fd), "inotify")} // read by the runtime's poller, as it does not block
	if w.conn, err = w.file.SyscallConn(); err != nil {
		return nil, fmt.Errorf("watching folders: %w", err)
	}
	return w, nil
}

// Add watches the folder of a descriptor, which may be closed afterwards. A folder that is watched
// already keeps its watch, with the new mask.
func (w *Watcher) Add(dir int, mask uint32) (watch int, err error) {
	failed := w.conn.Control(func(fd uintptr) {
		watch, err = unix.InotifyAddWatch(int(fd), "/proc/self/fd/"+strconv.Itoa(dir), mask)
	})
	return watch, errors.Join(failed, err)
}

// Remove ends a watch.
func (w *Watcher) Remove(watch int) {
	_ = w.conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(watch)) })
}

// Read waits for events. It returns an error after Close. An event with IN_Q_OVERFLOW says that the
// kernel has dropped others, of any folder.
func (w *Watcher) Read() ([]Event, error) {
	n, err := w.file.Read(w.buf[:])
	if err != nil {
		return nil, err
	}
	return parse(w.buf[:n]), nil
}

// Close ends all watches, and a Read that waits.
func (w *Watcher) Close() { _ = w.file.Close() }

func parse(text []byte) (out []Event) {
	for len(text) >= unix.SizeofInotifyEvent {
		length := int(binary.NativeEndian.Uint32(text[12:]))
		if len(text) < unix.SizeofInotifyEvent+length {
			break
		}
		name := text[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+length]
		out = append(out, Event{int(int32(binary.NativeEndian.Uint32(text))), binary.NativeEndian.Uint32(text[4:]), unix.ByteSliceToString(append(name[:len(name):len(name)], 0))})
		text = text[unix.SizeofInotifyEvent+length:]
	}
	return out
}
