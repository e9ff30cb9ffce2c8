package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/region"
	"ration/internal/safepath"
	"ration/internal/termtext"
)

// The file `info` in a job's folder has lines of JSON: what was launched, and how it ended. The first line
// is written before the command starts. The second is written by the launcher, which waits for the command,
// before it drops its lock on `alive`. If the launcher is killed, there is no second line, and how the command
// ended is not known. Launchers that joined the job append a line each if their commands failed. A line
// without its newline does not count: its writer has died, or is writing it.
//
// The file only grows, so a process that has it open can read how the job ended after the job was
// removed. The job's user can write anything into it, except for root's jobs with --keep, whose programs
// do not see the folder.

const infoName = "info"

// Bounds of the file and of the command line in it, which could be 2 MiB long.
const (
	maxInfo     = 16 << 10
	maxCommand  = 4 << 10 // bytes of all arguments together
	cutArgument = "…"     // in place of those that are left out
	maxPlaced   = 1 << 10 // bytes of Info.Placed
)

// Info is what a launcher writes before it starts a job's command.
type Info struct {
	Command []string `json:"command"` // with its arguments, printable; a long one is cut
	PID     int      `json:"pid"`     // of the launcher, in its own PID namespace
	Started int64    `json:"started"` // Unix nanoseconds

	// Region is the path of the region that counts the command, if it is not the job's own: under a policy the
	// command is in its user's job, or in a run, which are root's. Empty otherwise.
	Region string `json:"region,omitempty"`

	// Placed says why the job is on its devices and not on others. Empty if it may use all.
	Placed string `json:"placed,omitempty"`

	Labels  map[string]string `json:"labels,omitempty"`  // chosen by the user
	Claimed bool              `json:"claimed,omitempty"` // of a run that a policy has made: no rule of it allows the labels

	SleepAfter time.Duration `json:"sleep_after,omitempty"` // the job falls asleep when it has done nothing on its devices for so long; 0 if it does not
	WakeManual bool          `json:"wake_manual,omitempty"` // then only ration wake wakes it
}

// End is how a job's command ended.
type End struct {
	Status int   `json:"status"`         // exit status; 128 and the signal's number if one ended it
	Signal int   `json:"signal"`         // the signal that ended it, or 0
	Ended  int64 `json:"ended"`          // when the command ended, in Unix nanoseconds; from Wait when the job ended, 0 if that is unknown
	Left   bool  `json:"left,omitempty"` // other processes of the job lived then, so the job ended later

	// NotStarted is why the command was not started, from TryWait only: Status is then that of its ration run. Empty if it was.
	NotStarted string `json:"-"`
}

// WriteInfo records what is launched. The lock must be exclusive. It sets the PID and the time of the info, and cuts
// the command.
func (l *Lock) WriteInfo(info Info) error {
	info.Command, info.PID, info.Started = cutCommand(info.Command), os.Getpid(), time.Now().UnixNano()
	return l.writeInfo(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, info)
}

// WriteEnd records how the command ended.
func (l *Lock) WriteEnd(status, signal int) error {
	return l.writeInfo(unix.O_WRONLY|unix.O_APPEND, End{Status: status, Signal: signal, Ended: time.Now().UnixNano(), Left: l.isLeft()})
}

// isLeft reports whether other processes use the job: they have joined it, or were launched in it.
func (l *Lock) isLeft() bool {
	path := l.Job.Path
	if run := InfoOf(l.Job).Region; IsRun(run) {
		path = run
	}
	return inUseBy(int(l.file.Fd())) || region.Locked(path)
}

// Relabel replaces the labels of a standing job, which has no command and no end to lose. Its folder is this user's.
func Relabel(j Job, labels map[string]string) error {
	info, path := InfoOf(j), filepath.Join(filepath.Dir(j.Path), infoName)
	if maps.Equal(info.Labels, labels) {
		return nil
	}
	info.Labels = labels
	line, err := json.Marshal(info)
	if err == nil {
		err = safepath.Replace(path, append(line, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("labelling job %s: %w", j.Title(), err)
	}
	return nil
}

// ShowInfo lets all users read what was recorded.
func (l *Lock) ShowInfo() { _ = os.Chmod(filepath.Join(l.Folder, infoName), 0o644) } // a job works without it

func (l *Lock) writeInfo(flags int, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	path := filepath.Join(l.Folder, infoName)
	fd, err := safepath.Open(path, flags, 0o600)
	if err == nil {
		file := os.NewFile(uintptr(fd), path)
		_, err = file.Write(append(line, '\n'))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("recording the command of job %s: %w", l.Job.Name, l.Job.ifFull(err))
	}
	return nil
}

// ifFull adds to the error of a write in a job's folder what to do if there was no space. A policy's jobs are in root's folder
// of jobs, whatever EnvFolder says.
func (j Job) ifFull(err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	if _, is := PolicyUser(j.Path); is {
		return fmt.Errorf("%w (remove files there)", err)
	}
	return fmt.Errorf("%w (remove files there, or name another folder in %s)", err, EnvFolder)
}

// cutCommand makes a command line printable, and cuts a long one.
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

// Launch is how a job was launched, by the files in its folder.
type Launch struct {
	Launched bool // by ration run: there is a file that launchers lock
	Running  bool // the command runs, or a process creates or removes the job
	Standing bool // made by ration create, and not removed
	UID      int  // of the launcher; -1 if it is unknown
	Info     Info // empty if there is none
	End      *End // nil if it is unknown

	Kubernetes *Kubernetes // nil for a job without a claim
	Rest       *Rest       // nil if no process watches whether the job works
}

// ReadLaunch reads how a job was launched from its folder. It trusts nothing in the folder, and
// reads a bounded part of each file.
func ReadLaunch(dir int) Launch {
	out := Launch{UID: -1}
	fd, err := safepath.OpenAt(dir, aliveName, unix.O_RDONLY, 0)
	if err == nil {
		out.Launched, out.Running = true, inUseBy(fd)
		_ = unix.Close(fd)
	} else if err == unix.EAGAIN { // another process has a lease on the file
		out.Launched, out.Running = true, true
	}
	_, out.Standing = standingIn(dir)
	out.Kubernetes, out.Rest = readKubernetes(dir), readRest(dir)
	if fd, err = safepath.OpenAt(dir, infoName, unix.O_RDONLY, 0); err == nil {
		defer unix.Close(fd)
		out.UID, out.Info, out.End = readInfo(fd)
	}
	return out
}

// InfoOf returns what was recorded about a job; empty if nothing was.
func InfoOf(j Job) Info {
	dir, err := safepath.OpenFolder(filepath.Dir(j.Path))
	if err != nil {
		return Info{}
	}
	defer unix.Close(dir)
	return ReadLaunch(dir).Info
}

// readInfo reads the file, and gets its owner from the kernel.
func readInfo(fd int) (uid int, info Info, end *End) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, info, nil
	}
	info, end = parseInfo(readStart(fd, maxInfo))
	return int(st.Uid), info, end
}

// readStart returns the first bytes of a file, at most most, or the part before a read error. It
// does not move the descriptor's offset.
func readStart(fd int, most int64) []byte {
	text, _ := io.ReadAll(io.NewSectionReader(preader(fd), 0, most))
	return text
}

type preader int

func (fd preader) ReadAt(b []byte, at int64) (int, error) {
	n, err := unix.Pread(int(fd), b, at)
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return max(n, 0), err
}

// parseInfo parses the file. end is the first command that failed, or else the first that ended, with the time of the last: the
// job has ended with that.
func parseInfo(text []byte) (info Info, end *End) {
	first, rest, whole := bytes.Cut(text, []byte("\n"))
	if !whole || json.Unmarshal(first, &info) != nil {
		return Info{}, nil
	}
	info.Command, info.Started = cutCommand(info.Command), max(0, info.Started)
	info.Placed = cutText(info.Placed, maxPlaced)
	info.Labels, info.SleepAfter = boundLabels(info.Labels), max(0, info.SleepAfter)
	var last *End
	for whole {
		var line []byte
		if line, rest, whole = bytes.Cut(rest, []byte("\n")); !whole {
			break
		}
		e := parseEnd(line)
		if e == nil {
			break // it was not written by a launcher
		}
		if last = e; end == nil || end.Status == 0 && e.Status != 0 {
			end = &End{Status: e.Status, Signal: e.Signal}
		}
	}
	if end != nil {
		end.Ended, end.Left = last.Ended, last.Left
	}
	return info, end
}

// parseEnd parses a line of WriteEnd. It returns nil if a value is impossible.
func parseEnd(line []byte) *End {
	var e End
	if json.Unmarshal(line, &e) != nil || e.Status < 0 || e.Status > 255 || e.Signal < 0 || e.Signal > 64 || e.Ended < 0 {
		return nil
	}
	return &e
}
