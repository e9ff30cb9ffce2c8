package safepath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Watcher is a set of watched folders, also of other users (inotify). All methods except Read are safe for concurrent use.
//
// github.com/fsnotify/fsnotify is not used: it does not report that a file was opened, or closed after
// writing, and takes folders only by path, which a tenant can change between opening and watching.
type Watcher struct {
	file *os.File
	conn syscall.RawConn // of file: its calls fail after Close, when the number may belong to another file
	buf  [64 << 10]byte  // of Read
}

// WatchEvent is something that happened in a folder.
type WatchEvent struct {
	Watch int    // result of Add
	Mask  uint32 // unix.IN_*
	Name  string // file name, or "" for the folder itself
}

// NewWatcher returns a watcher of no folder.
func NewWatcher() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching folders: %w", err)
	}
	w := &Watcher{file: os.NewFile(uintptr(fd), "inotify")} // the runtime's poller reads it, because it does not block
	if w.conn, err = w.file.SyscallConn(); err != nil {
		return nil, fmt.Errorf("watching folders: %w", err)
	}
	return w, nil
}

// Add watches the folder of a descriptor, which may be closed afterwards. If the folder is watched
// already, it keeps its watch and gets the new mask.
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

// Read waits for events. It returns an error after Close. An event with IN_Q_OVERFLOW means that
// the kernel has dropped others, of any folder.
func (w *Watcher) Read() ([]WatchEvent, error) {
	n, err := w.file.Read(w.buf[:])
	if err != nil {
		return nil, err
	}
	return parse(w.buf[:n]), nil
}

// Close ends all watches, and a Read in progress.
func (w *Watcher) Close() { _ = w.file.Close() }

func parse(text []byte) (out []WatchEvent) {
	for len(text) >= unix.SizeofInotifyEvent {
		length := int(binary.NativeEndian.Uint32(text[12:]))
		if len(text) < unix.SizeofInotifyEvent+length {
			break
		}
		name := text[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+length]
		out = append(out, WatchEvent{int(int32(binary.NativeEndian.Uint32(text))), binary.NativeEndian.Uint32(text[4:]), unix.ByteSliceToString(append(name[:len(name):len(name)], 0))})
		text = text[unix.SizeofInotifyEvent+length:]
	}
	return out
}
