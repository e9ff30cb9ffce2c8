package privsep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"ration/internal/connlimit"
	"ration/internal/proc"
	"ration/internal/region"
)

// The reader has no right to trace a process. What the kernel tells only with that right, and the reader
// needs, it asks its parent for, in a packet on a second pair of sockets. Whatever it asks, it learns no
// byte of a process's memory, and gets no descriptor by which it could write.

// maxInspecting is how many questions the parent answers at a time.
const maxInspecting = 8

// maxPacket bounds a question, and maxAnswer an answer: as many locks as are kept of a process, or a path.
const (
	maxPacket = 512
	maxAnswer = 128 << 10
)

// Kinds of questions.
const (
	askMaps   = "maps"   // the list of mappings of a process: a descriptor
	askLocks  = "locks"  // what a process has locked of a file
	askRoot   = "root"   // the root of a process that has a file open: a descriptor, and the file's path
	askListen = "listen" // the socket at the address that the operator has set: a descriptor
)

// question is a packet from the reader.
type question struct {
	ID    uint64         `json:"id"`
	Kind  string         `json:"kind"`
	PID   int            `json:"pid,omitempty"`
	File  region.FileKey `json:"file"`
	At    int64          `json:"at,omitempty"`
	Looks int            `json:"looks,omitempty"`
}

// reply is a packet from the parent, with a descriptor if the question was for one.
type reply struct {
	ID    uint64       `json:"id"`
	Error string       `json:"error,omitempty"`
	Errno int          `json:"errno,omitempty"`
	Path  string       `json:"path,omitempty"`
	Locks region.Locks `json:"locks"`
}

// inspect answers the questions of a reader until the connection is closed. It returns an error for something
// that is not a question.
func inspect(own *net.UnixConn, listen func() (*os.File, error)) error {
	var all sync.WaitGroup
	failed := make(chan error, maxInspecting)
	for range maxInspecting {
		all.Go(func() {
			packet := make([]byte, maxPacket+1)
			for {
				n, err := own.Read(packet)
				if err != nil || n == 0 {
					return // the reader has ended, or is about to
				}
				var q question
				if err := json.Unmarshal(packet[:n], &q); err != nil || n > maxPacket {
					failed <- fmt.Errorf("%w: a question of %d bytes: %w", ErrBroken, n, errors.Join(err, own.Close()))
					return
				}
				if q.answer(own, listen) != nil {
					return
				}
			}
		})
	}
	all.Wait()
	close(failed)
	return <-failed
}

// answer answers a question. Its error is that of the connection.
func (q *question) answer(own *net.UnixConn, listen func() (*os.File, error)) error {
	r := reply{ID: q.ID}
	file, err := q.ask(&r, listen)
	var rights []byte
	if err == nil && file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	if err != nil {
		r.Error = firstOf(err.Error())
		var errno unix.Errno
		if errors.As(err, &errno) {
			r.Errno = int(errno)
		}
	}
	text, err := json.Marshal(r)
	if err == nil {
		_, _, err = own.WriteMsgUnix(text, rights, nil)
	}
	if file != nil {
		_ = file.Close()
	}
	return err
}

// ask asks the kernel.
func (q *question) ask(r *reply, listen func() (*os.File, error)) (*os.File, error) {
	if q.Kind == askListen {
		return listen()
	}
	if q.PID <= 0 {
		return nil, fmt.Errorf("%w: there is no process %d", ErrRefused, q.PID)
	}
	switch q.Kind {
	case askMaps:
		return openMaps(q.PID)
	case askLocks:
		r.Locks = region.Kernel{}.Locks(q.PID, q.File, q.At, q.Looks)
		return nil, nil
	case askRoot:
		root, path, err := region.Kernel{}.OpenRoot(q.PID, q.File)
		if r.Path = path; err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(root), "root"), nil
	}
	return nil, fmt.Errorf("%w: %q is no question", ErrRefused, q.Kind)
}

// openMaps opens the list of mappings of a process. It does not wait for a process that keeps its memory locked.
func openMaps(pid int) (*os.File, error) {
	type opened struct {
		maps *os.File
		err  error
	}
	got, answered := proc.Ask(pid, func() opened {
		maps, err := region.Kernel{}.OpenMaps(pid)
		return opened{maps, err}
	}, func(got opened) { _ = got.maps.Close() })
	if !answered {
		return nil, fmt.Errorf("%w: the memory of process %d is locked", unix.EAGAIN, pid)
	}
	return got.maps, got.err
}

// Inspector asks the parent. It is the reader's end.
type Inspector struct {
	conn *net.UnixConn

	mu      sync.Mutex
	next    uint64                    // under mu: the ID of the next question
	waiting map[uint64]chan<- replied // under mu, by ID; nil after the parent has ended
}

type replied struct {
	reply
	file *os.File
}

var _ region.Inspector = (*Inspector)(nil)

func newInspector(conn *net.UnixConn) *Inspector {
	i := &Inspector{conn: conn, waiting: map[uint64]chan<- replied{}}
	go i.read()
	return i
}

// errParentEnded is returned for a question that is not answered any more.
var errParentEnded = errors.New("the agent's parent process has ended")

// read passes on the answers until the parent ends.
func (i *Inspector) read() {
	defer func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		for _, to := range i.waiting {
			close(to)
		}
		i.waiting = nil
	}()
	text, rights := make([]byte, maxAnswer), make([]byte, unix.CmsgSpace(4))
	for {
		n, nrights, _, _, err := i.conn.ReadMsgUnix(text, rights)
		if err != nil || n == 0 {
			return
		}
		var got replied
		if got.file = passedFile(rights[:nrights]); json.Unmarshal(text[:n], &got.reply) != nil {
			return
		}
		i.mu.Lock()
		to := i.waiting[got.ID]
		delete(i.waiting, got.ID)
		i.mu.Unlock()
		if to != nil {
			to <- got
		}
	}
}

// passedFile returns the descriptor that came with a packet, or nil.
func passedFile(rights []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "passed")
}

func (i *Inspector) ask(q question) (replied, error) {
	done := make(chan replied, 1)
	i.mu.Lock()
	if i.waiting == nil {
		i.mu.Unlock()
		return replied{}, errParentEnded
	}
	i.next++
	q.ID = i.next
	i.waiting[q.ID] = done
	i.mu.Unlock()
	text, err := json.Marshal(q)
	if err == nil {
		_, err = i.conn.Write(text)
	}
	if err != nil {
		i.mu.Lock()
		delete(i.waiting, q.ID)
		i.mu.Unlock()
		return replied{}, err
	}
	got, there := <-done
	switch {
	case !there:
		return got, errParentEnded
	case got.Errno != 0:
		return got, &remoteError{got.Error, unix.Errno(got.Errno)}
	case got.Error != "":
		return got, errors.New(got.Error)
	}
	return got, nil
}

// remoteError is an error of the parent's, with the number that the kernel gave.
type remoteError struct {
	text  string
	errno unix.Errno
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.errno }

// file asks for a descriptor.
func (i *Inspector) file(q question) (replied, error) {
	got, err := i.ask(q)
	if err == nil && got.file == nil {
		err = errors.New("no descriptor came with the answer for process " + strconv.Itoa(q.PID))
	}
	return got, err
}

// OpenMaps opens the list of mappings of a process.
func (i *Inspector) OpenMaps(pid int) (*os.File, error) {
	got, err := i.file(question{Kind: askMaps, PID: pid})
	return got.file, err
}

// Locks returns what a process has locked of a file.
func (i *Inspector) Locks(pid int, file region.FileKey, at int64, looks int) region.Locks {
	got, err := i.ask(question{Kind: askLocks, PID: pid, File: file, At: at, Looks: looks})
	if err != nil { // what is not known is no proof
		return region.Locks{Full: true}
	}
	return got.Locks
}

// OpenRoot returns the root of a process that has a file open, and the file's path.
func (i *Inspector) OpenRoot(pid int, file region.FileKey) (root int, path string, err error) {
	got, err := i.file(question{Kind: askRoot, PID: pid, File: file})
	if err != nil {
		return -1, got.Path, err
	}
	defer got.file.Close()
	root, err = unix.FcntlInt(got.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return root, got.Path, err
}

// Listen returns the socket at the address that the operator has set.
func (i *Inspector) Listen() (net.Listener, error) {
	got, err := i.file(question{Kind: askListen})
	if err != nil {
		return nil, err
	}
	defer got.file.Close() // the listener has its own
	return net.FileListener(got.file)
}

// listenAt returns what answers askListen.
func listenAt(address string) func() (*os.File, error) {
	return func() (*os.File, error) {
		if address == "" {
			return nil, fmt.Errorf("%w: there is no address to listen at", ErrRefused)
		}
		var config net.ListenConfig
		config.SetMultipathTCP(false) // the kernel's rules for TCP do not count for it
		l, err := config.Listen(context.Background(), connlimit.Network(address), address)
		if err != nil {
			return nil, err
		}
		defer l.Close() // the file has its own
		return l.(*net.TCPListener).File()
	}
}
