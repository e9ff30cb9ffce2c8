package job

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
	"ration/internal/termtext"
)

// The file `info` in a job's folder says what was launched, in one line of JSON, and, in a
// second one, how it ended. The first is written before the command starts. The second is
// written by a launcher that waits for the command (ration run --summary); where the launcher
// became the command, nobody is left to write it. A line without its newline does not count:
// its writer died, or is writing it.
//
// The file is written in place and only made longer, so that a process that has it open reads
// how the job ended also when the job has been removed. Like all of a job's folder it is the
// word of the job's user, but for root's jobs with --keep, whose programs do not see the folder.

const infoName = "info"

// Bounds of the file, and of what is taken from it. A command line can be 2 MiB long.
const (
	maxInfo     = 16 << 10
	maxCommand  = 4 << 10 // bytes of all arguments together
	cutArgument = "…"     // in place of those that are left out
)

// Info is what a launcher wrote when it started a job's command.
type Info struct {
	Command []string `json:"command"` // with its arguments, printable; a long one is cut
	PID     int      `json:"pid"`     // of the launcher, in its own PID namespace
	Started int64    `json:"started"` // Unix nanoseconds
}

// End is how a job's command ended.
type End struct {
	Status int   `json:"status"` // exit status; 128 and the signal's number if one ended it
	Signal int   `json:"signal"` // that ended it, or 0
	Ended  int64 `json:"ended"`  // Unix nanoseconds
}

// WriteInfo writes what is launched. The lock must be exclusive.
func (l *Lock) WriteInfo(command []string) error {
	info := Info{Command: cutCommand(command), PID: os.Getpid(), Started: time.Now().UnixNano()}
	return l.writeInfo(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, info)
}

// WriteEnd writes how the command ended.
func (l *Lock) WriteEnd(status, signal int) error {
	return l.writeInfo(unix.O_WRONLY|unix.O_APPEND, End{status, signal, time.Now().UnixNano()})
}

func (l *Lock) writeInfo(flags int, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	fd, err := safepath.Open(filepath.Join(l.Folder, infoName), flags, 0o600)
	if err != nil {
		return fmt.Errorf("writing down what job %s is: %w", l.Job.Name, err)
	}
	file := os.NewFile(uintptr(fd), infoName)
	_, err = file.Write(append(line, '\n'))
	if e := file.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("writing down what job %s is: %w", l.Job.Name, err)
	}
	return nil
}

// cutCommand makes a command line printable, and not too long.
func cutCommand(command []string) []string {
	out, left := []string{}, maxCommand
	for _, arg := range command {
		arg = termtext.Printable(strings.ToValidUTF8(arg[:min(len(arg), left)], "?"))
		if left -= len(arg) + 1; left <= 0 {
			return append(out, cutArgument)
		}
		out = append(out, arg)
	}
	return out
}

// Launch is what a job's folder says of its launcher.
type Launch struct {
	Launched bool // by ration run: it has a file that launchers lock
	Running  bool // a process of the command has that locked, or one that creates or removes the job
	Standing bool // made by ration create, and not removed
	UID      int  // of the launcher; -1 where that is not known
	Info     Info // empty where there is none
	End      *End // nil where that is not known

	Kubernetes *Kubernetes // nil for a job that was not made for a claim
}

// ReadLaunch reads it, by the descriptor of the job's folder. Nothing in there is trusted, and
// only a bounded part read.
func ReadLaunch(dir int) Launch {
	out := Launch{UID: -1}
	fd, err := safepath.OpenAt(dir, aliveName, unix.O_RDONLY, 0)
	if err == nil {
		out.Launched, out.Running = true, inUseBy(fd)
		_ = unix.Close(fd)
	} else if err == unix.EAGAIN { // a lease on it
		out.Launched, out.Running = true, true
	}
	_, out.Standing = standingIn(dir)
	out.Kubernetes = readKubernetes(dir)
	if fd, err = safepath.OpenAt(dir, infoName, unix.O_RDONLY, 0); err == nil {
		defer unix.Close(fd)
		out.UID, out.Info, out.End = readInfo(fd)
	}
	return out
}

// readInfo reads the file. Whose it is, the kernel says.
func readInfo(fd int) (uid int, info Info, end *End) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, info, nil
	}
	text, err := io.ReadAll(io.LimitReader(readerAt(fd), maxInfo))
	if err != nil {
		return -1, info, nil
	}
	info, end = parseInfo(text)
	return int(st.Uid), info, end
}

// readerAt reads a file from its beginning, without moving the descriptor's place.
func readerAt(fd int) io.Reader {
	return io.NewSectionReader(preader(fd), 0, maxInfo)
}

type preader int

func (fd preader) ReadAt(b []byte, at int64) (int, error) {
	n, err := unix.Pread(int(fd), b, at)
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return max(n, 0), err
}

// parseInfo parses what launchers write.
func parseInfo(text []byte) (info Info, end *End) {
	first, rest, whole := bytes.Cut(text, []byte("\n"))
	if !whole || json.Unmarshal(first, &info) != nil {
		return Info{}, nil
	}
	info.Command, info.Started = cutCommand(info.Command), max(0, info.Started)
	last, _, whole := bytes.Cut(rest, []byte("\n"))
	var e End
	if !whole || json.Unmarshal(last, &e) != nil || e.Status < 0 || e.Status > 255 || e.Signal < 0 || e.Signal > 64 || e.Ended < 0 {
		return info, nil
	}
	return info, &e
}
