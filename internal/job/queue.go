package job

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/proc"
	"ration/internal/safepath"
	"ration/internal/termtext"
)

// The queue of a folder of jobs: commands that wait for room (ration run --wait). The file
// queueName has a byte for each ticket. A process that waits holds an exclusive lock on the byte
// of its ticket, and the kernel drops it when the process leaves or dies. The order is that of the
// tickets. docs/protocols.md (*The queue*) has the protocol.
//
// The file's content is a hint for messages, except for the number of the next ticket.

const (
	queueName = ".queue"

	// Bytes that are locked. They are beyond the end of the file.
	mutexByte   = 1 << 40 // while a ticket is taken
	firstTicket = 1 << 41 // of ticket 0
	lastTicket  = 1 << 61

	// Content: the number of the next ticket, then a record for each ticket, modulo maxWaiting.
	firstRecord = 4096
	recordSize  = 512
)

// maxWaiting bounds how many commands wait in one folder at once.
const maxWaiting = 1024

// ErrQueueFull is returned if maxWaiting commands are waiting.
var ErrQueueFull = errors.New("the queue is full")

// Waiting is a command in the queue, or a job that sleeps and is to be woken. All of it except Ticket is a claim of the process that waits.
type Waiting struct {
	Ticket uint64         `json:"ticket"`          // the order of the queue: the lowest is the first
	Job    string         `json:"job,omitempty"`   // name of the job that will be made; empty if unknown
	PID    int            `json:"pid,omitempty"`   // of ration run, in its own PID namespace
	Start  uint64         `json:"start,omitempty"` // start time of that process, as in /proc/PID/stat
	Since  int64          `json:"since,omitempty"` // Unix nanoseconds
	Wants  map[int]uint64 `json:"wants,omitempty"` // bytes by device; -2 is any two
	Joins  bool           `json:"joins,omitempty"` // if the job exists when its turn comes, the command joins it
	Wakes  bool           `json:"wakes,omitempty"` // the job exists, sleeps, and wakes when its turn comes
	UID    int            `json:"uid,omitempty"`   // in root's queue: the user that the policy's service waits for
	Run    bool           `json:"run,omitempty"`   // the job will be a run of the policy, with a part of the user's ration
}

// Ticket is this process's place in the queue.
type Ticket struct {
	file   *os.File
	number uint64
	record Waiting
}

// Enqueue puts this process at the end of the queue of this user's folder of jobs. w says what it waits for; its
// ticket is set here, its time, if it is 0, is now, and its PID, if it is 0, is this process's.
func Enqueue(w Waiting) (*Ticket, error) {
	t, err := enqueue(w)
	if err != nil {
		return nil, fmt.Errorf("entering the queue: %w", err)
	}
	return t, nil
}

func enqueue(w Waiting) (*Ticket, error) {
	if err := makeTop(); err != nil {
		return nil, err
	}
	path := filepath.Join(Folder(), queueName)
	for {
		fd, err := safepath.Open(path, unix.O_RDWR|unix.O_CREAT, 0o600|unix.S_ISVTX) // see keepFromAging
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w (remove it)", path, err)
		}
		t := &Ticket{file: os.NewFile(uintptr(fd), path)}
		if err := t.take(w); err != nil {
			t.Leave()
			return nil, err
		}
		// If the file was removed meanwhile, no other process finds this ticket.
		own, err := t.file.Stat()
		current, err2 := os.Lstat(path)
		if err == nil && err2 == nil && os.SameFile(own, current) {
			return t, nil
		}
		t.Leave()
		if err2 != nil && !errors.Is(err2, fs.ErrNotExist) {
			return nil, err2
		}
	}
}

// take takes the next ticket. A process that is killed in between leaves no ticket.
func (t *Ticket) take(w Waiting) error {
	if err := t.lock(unix.F_OFD_SETLKW, exclusive, mutexByte, 1); err != nil {
		return fmt.Errorf("locking %s: %w (does its file system have locks?)", t.file.Name(), err)
	}
	defer func() { _ = t.lock(unix.F_OFD_SETLK, unix.F_UNLCK, mutexByte, 1) }()
	var next [8]byte
	_, _ = t.file.ReadAt(next[:], 0) // a new file has ticket 0
	t.number = binary.LittleEndian.Uint64(next[:])
	if t.number >= lastTicket-firstTicket-1 { // not from this program
		t.number = 0
	}
	// The number is too low if the file's content was damaged. The tickets that are held are still right.
	for {
		at, held := anyTicket(int(t.file.Fd()), firstTicket+t.number, lastTicket)
		if !held {
			break
		}
		t.number = at - firstTicket + 1
	}
	if err := checkNotQueued(int(t.file.Fd()), w.Job); err != nil && !w.Joins && !w.Wakes {
		return err
	}
	if err := t.skipRecords(); err != nil {
		return err
	}
	if err := t.lock(unix.F_OFD_SETLK, exclusive, int64(firstTicket+t.number), 1); err != nil {
		return fmt.Errorf("locking ticket %d: %w", t.number, err)
	}
	w.Ticket, w.Since, w.PID = t.number, cmp.Or(w.Since, time.Now().UnixNano()), cmp.Or(w.PID, os.Getpid())
	w.Start, _ = proc.Started(w.PID)
	t.record = w
	err := t.writeRecord()
	binary.LittleEndian.PutUint64(next[:], t.number+1)
	_, err2 := t.file.WriteAt(next[:], 0)
	return errors.Join(err, err2)
}

// writeRecord writes the ticket's record. Nobody else writes it while the ticket is held.
func (t *Ticket) writeRecord() error {
	record, err := json.Marshal(t.record)
	if err == nil && len(record) < recordSize {
		record = append(record, make([]byte, recordSize-len(record))...)
		_, err = t.file.WriteAt(record, recordAt(t.number))
	}
	return err
}

// SetClient says that another process waits with the ticket. Its place and its time stay.
func (t *Ticket) SetClient(c Client) error {
	if c.PID == t.record.PID && c.Start == t.record.Start {
		return nil
	}
	t.record.PID, t.record.Start = c.PID, c.Start
	return t.writeRecord()
}

// skipRecords moves the ticket's number to the next one whose record is not that of a ticket that is held. Numbers that
// are left out cost nothing: without that, commands that come and go would fill the queue behind one that stays.
func (t *Ticket) skipRecords() error {
	fd := int(t.file.Fd())
	if _, held := anyTicket(fd, firstTicket, firstTicket+t.number-min(t.number, maxWaiting-1)); !held {
		return nil
	}
	used := map[uint64]bool{}
	for _, at := range heldTickets(fd, firstTicket, firstTicket+t.number, maxWaiting, always) {
		used[(at-firstTicket)%maxWaiting] = true
	}
	if len(used) == maxWaiting {
		return ErrQueueFull
	}
	for used[t.number%maxWaiting] {
		t.number++
	}
	return nil
}

// checkNotQueued returns an error if a command in the queue will make the job of that name: the later one could not
// make its job while the earlier one runs, and would fail after its time in the queue.
func checkNotQueued(fd int, name string) error {
	if w, is := queuedAs(fd, name, always); is {
		return nameQueued(name, w)
	}
	return nil
}

// ErrQueued is returned for the name of a job that a command in the queue will make. It is an ErrInUse.
var ErrQueued = fmt.Errorf("%w by a command that waits for room", ErrInUse)

func nameQueued(name string, w Waiting) error {
	return fmt.Errorf("job %s: %w, as pid %d (choose another --name)", name, ErrQueued, w.PID)
}

// checkNotTaken returns an error if another process waits in the queue to make the job of that name. Such a process
// enters the queue and then looks whether the name is in use (CheckUnused); another process that makes the job locks the
// name and then looks here. So one of them sees the other, and no command waits in vain.
func checkNotTaken(name string) error {
	q := FindQueued(Folder(), name)
	defer q.Close()
	if q == nil || q.Joins || q.PID == os.Getpid() {
		return nil
	}
	return nameQueued(name, q.Waiting)
}

// queuedAs returns the first command in the queue that will make the job of that name, if it is found while more is true.
// It asks the kernel only about records with that name, most of which are of commands that have left the queue. What the
// policy's service waits for is no such command: its PID is that of a client, and may be another process's by now.
func queuedAs(fd int, name string, more func() bool) (first Waiting, is bool) {
	all := make([]byte, firstRecord+maxWaiting*recordSize)
	n, _ := unix.Pread(fd, all, 0)
	for at := firstRecord; at+recordSize <= n && more(); at += recordSize {
		record := all[at : at+recordSize]
		if !bytes.Contains(record, []byte(name)) {
			continue
		}
		w := parseWaiting(record)
		if w.Job != name || w.Wakes || w.UID != 0 || recordAt(w.Ticket) != int64(at) || is && w.Ticket > first.Ticket {
			continue
		}
		if _, held := anyTicket(fd, firstTicket+w.Ticket, firstTicket+w.Ticket+1); held {
			first, is = w, true
		}
	}
	return first, is
}

func recordAt(ticket uint64) int64 { return firstRecord + int64(ticket%maxWaiting)*recordSize }

// First returns when no earlier ticket is held: this process is the first in the queue, and stays so
// until it leaves.
func (t *Ticket) First() error {
	if t.number == 0 {
		return nil
	}
	// Shared: tickets are held exclusively, so this waits for them, and for no other process that waits.
	err := t.lock(unix.F_OFD_SETLKW, shared, firstTicket, int64(t.number))
	if err == nil {
		err = t.lock(unix.F_OFD_SETLK, unix.F_UNLCK, firstTicket, int64(t.number))
	}
	if err != nil {
		return fmt.Errorf("waiting for the first place in the queue: %w", err)
	}
	return nil
}

// Ahead returns how many earlier tickets are held.
func (t *Ticket) Ahead() int {
	return len(heldTickets(int(t.file.Fd()), firstTicket, firstTicket+t.number, maxWaiting, always))
}

// Leave gives up the place.
func (t *Ticket) Leave() { _ = t.file.Close() }

func (t *Ticket) lock(how int, kind int16, start, length int64) error {
	for {
		l := unix.Flock_t{Type: kind, Start: start, Len: length}
		if err := unix.FcntlFlock(t.file.Fd(), how, &l); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// anyTicket returns a ticket's byte that another open file has locked, if there is one from from to
// before to.
func anyTicket(fd int, from, to uint64) (at uint64, held bool) {
	if from >= to {
		return 0, false
	}
	// Ask for a shared lock: a shared lock of First does not count.
	l := unix.Flock_t{Type: shared, Start: int64(from), Len: int64(to - from)}
	if unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l) != nil || l.Type == unix.F_UNLCK {
		return 0, false
	}
	return max(from, uint64(l.Start)), true
}

// heldTickets returns the bytes of the tickets that are held from from to before to, in order, at
// most most, and only those that are found while more is true.
func heldTickets(fd int, from, to uint64, most int, more func() bool) []uint64 {
	if most <= 0 || !more() {
		return nil
	}
	at, held := anyTicket(fd, from, to)
	if !held {
		return nil
	}
	out := append(heldTickets(fd, from, at, most-1, more), at)
	return append(out, heldTickets(fd, at+1, to, most-len(out), more)...)
}

func always() bool { return true }

// Queue returns the commands that wait in a folder of jobs, in order, at most maxWaiting. A folder
// without a queue has none. Nothing in the folder is trusted.
func Queue(folder string) ([]Waiting, error) { return QueueWhile(folder, maxWaiting, always) }

// QueueWhile is Queue for at most most commands, and for those that are found while more is true: each question to the
// kernel takes as long as the file has locks, and its owner can take any number.
func QueueWhile(folder string, most int, more func() bool) ([]Waiting, error) {
	dir, err := safepath.OpenFolder(folder)
	var fd int
	if err == nil {
		defer unix.Close(dir)
		fd, err = safepath.OpenAt(dir, queueName, unix.O_RDONLY, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the queue of %s: %w", folder, err)
	}
	defer unix.Close(fd)
	var out []Waiting
	for _, at := range heldTickets(fd, firstTicket, lastTicket, most, more) {
		out = append(out, readWaiting(fd, at-firstTicket))
	}
	return out, nil
}

// Queued is a command that waits in the queue of a folder.
type Queued struct {
	Waiting
	folder string
	file   *os.File
}

// findTime bounds the search for a command in the queue of another user, as QueueWhile says.
const findTime = 100 * time.Millisecond

// FindQueued returns the command in the queue of a folder that will make the job of that name, or nil. The caller
// closes it.
func FindQueued(folder, name string) *Queued {
	if name == "" {
		return nil
	}
	fd, err := safepath.Open(filepath.Join(folder, queueName), unix.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	more := always
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || int(st.Uid) != os.Geteuid() {
		more = safepath.RealClock.For(findTime).Left
	}
	if w, is := queuedAs(fd, name, more); is {
		w.Job = termtext.Printable(w.Job)
		return &Queued{w, folder, os.NewFile(uintptr(fd), queueName)}
	}
	_ = unix.Close(fd)
	return nil
}

// Job returns the job that the command will make.
func (q *Queued) Job() Job {
	return Job{q.Waiting.Job, filepath.Join(q.folder, q.Waiting.Job, RegionName)}
}

// Close closes the queue's file. q may be nil.
func (q *Queued) Close() {
	if q != nil {
		_ = q.file.Close()
	}
}

// isLauncher reports whether a process, of which a handle is open, is the one that waits. Its PID is a claim of the
// queue's owner, so only a process of that user counts.
func (q *Queued) isLauncher(pid int) bool {
	var st unix.Stat_t
	if unix.Fstat(int(q.file.Fd()), &st) != nil {
		return false
	}
	uid, _, _, err := proc.Owner(pid)
	start, err2 := proc.Started(pid)
	return pid == q.PID && err == nil && err2 == nil && start == q.Start && uid == int(st.Uid)
}

// Wait returns when the command has left the queue. started reports whether it has made its job, which it does
// before it leaves.
func (q *Queued) Wait() (started bool, err error) {
	// Tickets are held exclusively, and a shared lock hides none.
	t := Ticket{file: q.file}
	at := int64(firstTicket + q.Ticket)
	if err = t.lock(unix.F_OFD_SETLKW, shared, at, 1); err == nil {
		err = t.lock(unix.F_OFD_SETLK, unix.F_UNLCK, at, 1)
	}
	if err != nil {
		return false, fmt.Errorf("waiting for job %s to leave the queue: %w", q.Waiting.Job, err)
	}
	// An earlier job of that name had another launcher.
	fd, err := safepath.Open(filepath.Join(filepath.Dir(q.Job().Path), aliveName), unix.O_RDONLY, 0)
	if err != nil {
		return false, nil
	}
	defer unix.Close(fd)
	pid, start, err := parseLauncher(string(readStart(fd, 48)))
	return err == nil && pid == q.PID && start == q.Start, nil
}

// readWaiting reads the record of a ticket. If it is another's, or is being written, only the ticket is known.
func readWaiting(fd int, ticket uint64) Waiting {
	var record [recordSize]byte
	n, _ := unix.Pread(fd, record[:], recordAt(ticket))
	w := parseWaiting(record[:max(n, 0)])
	if w.Ticket != ticket {
		return Waiting{Ticket: ticket}
	}
	w.Job = termtext.Printable(w.Job)
	return w
}

// parseWaiting parses a record. It returns an empty one if that is damaged.
func parseWaiting(record []byte) (w Waiting) {
	if json.Unmarshal(bytes.TrimRight(record, "\x00"), &w) != nil || w.PID < 0 || w.Since < 0 || w.Ticket > lastTicket-firstTicket {
		return Waiting{}
	}
	return w
}

// QueueChanged wakes the first in the queue of this user's folder: it looks for room again. Call it after
// a change that no lock shows, as a lower limit.
func QueueChanged() {
	now := unix.NsecToTimespec(time.Now().UnixNano())
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(Folder(), queueName), []unix.Timespec{now, now}, unix.AT_SYMLINK_NOFOLLOW)
}
