package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"ration/internal/agent"
	"ration/internal/agent/privsep"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
)

// Root's agent is two processes (package privsep). This file has the part of ration agent that each
// of them runs.

// errOneProcess is returned if root's agent cannot be split into two processes.
var errOneProcess = errors.New("the agent is one process")

// agentUser returns the user and group of the reader. Tests replace it, because they cannot add a
// user.
var agentUser = func() (uid, gid uint32, err error) {
	uid, gid, err = proc.LocalUser(job.AgentUser)
	switch {
	case errors.Is(err, proc.ErrNoUser):
		return 0, 0, fmt.Errorf("there is no user %s (%s)", job.AgentUser, agent.MakeUser)
	case err == nil && (uid == 0 || gid == 0):
		return 0, 0, fmt.Errorf("user %s is root, or in root's group", job.AgentUser)
	}
	return uid, gid, err
}

// runParent runs root's agent as two processes: it starts the reader, and returns when the reader
// has ended.
func runParent(ctx context.Context, claim *agent.Claim, opts agent.Options, stderr io.Writer, logJSON bool) error {
	uid, gid, err := agentUser()
	if err != nil {
		return fmt.Errorf("%w: %w", errOneProcess, err)
	}
	socket, err := claim.Socket.File()
	if err != nil {
		return fmt.Errorf("handing on the agent's socket: %w", err)
	}
	defer socket.Close()
	makeStateFolder(agent.StateFolder, int(uid), int(gid))
	makeStateFolder(filepath.Dir(agent.UsageFile), int(uid), int(gid))
	args := []string{"ration", "agent", "--reader", "--listen=" + opts.Listen}
	if !opts.JobMetrics {
		args = append(args, "--job-metrics=false")
	}
	if opts.IdleAfter != agent.DefaultIdleAfter {
		args = append(args, "--idle-after="+opts.IdleAfter.String())
	}
	if logJSON {
		args = append(args, "--log-json")
	}
	if opts.Stop != nil {
		args = append(args, "--on-escape="+onEscapeStop, "--grace="+opts.Grace.String())
	}
	err = privsep.Run(ctx, privsep.Options{UID: uid, GID: gid, Groups: append(driverGroups("/dev/nvidiactl"), procGroups("/proc/self/mounts")...), Args: args, Socket: socket, Lock: claim.Lock, Listen: opts.Listen,
		Stderr: logWriter(stderr), Reap: reapAs, Stop: opts.Stop != nil, Ready: func() { agent.Notify("READY=1") }, Stopping: func() { agent.Notify("STOPPING=1") }})
	var exit *exec.ExitError
	switch {
	case errors.Is(err, privsep.ErrNotStarted):
		return fmt.Errorf("%w: %w", errOneProcess, err)
	case !errors.As(err, &exit):
		return err
	}
	if status, is := exit.Sys().(syscall.WaitStatus); is && status.Signaled() {
		return statusError{fmt.Errorf("the agent's reader was ended by %s", unix.SignalName(status.Signal())), ExitSignal + int(status.Signal())}
	}
	return statusError{errReported, exit.ExitCode()} // the reader has printed it
}

// runReader runs the reader process.
func runReader(ctx context.Context, stop func(), opts agent.Options) error {
	parent, err := privsep.Open()
	if err != nil {
		return usageError("--reader: %w (start ration agent)", err)
	}
	job.LookForRoot()
	socket, err := agent.ListenAt(privsep.SocketFD, job.Folder())
	if err != nil {
		return err
	}
	defer socket.Close()
	go func() {
		<-parent.Ended()
		stop()
	}()
	region.InspectBy(parent.Inspector)
	opts.Folder, opts.Usage, opts.Reap, opts.OpenListen = agent.StateFolder, agent.UsageFile, parent.Reap, parent.Inspector.Listen
	if opts.Stop != nil {
		opts.Stop = parent.Stop
	}
	return watch(ctx, stop, opts, socket, parent.Ready, func() {})
}

// makeStateFolder makes the reader's own folder, if the packages have not, and gives it what is left of an agent that
// was one process, of root. If it cannot, as under systemd, the reader reports it.
func makeStateFolder(path string, uid, gid int) {
	made := os.Mkdir(path, 0o700) == nil
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Uid != 0 || st.Mode&0o022 != 0 || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return // it is the reader's, or anybody's
	}
	files, _ := os.ReadDir(path)
	for _, f := range files { // before the folder, in which nobody but root can change anything until then
		_ = os.Lchown(filepath.Join(path, f.Name()), uid, gid)
	}
	if os.Lchown(path, uid, gid) != nil && made {
		_ = os.Remove(path)
	}
}

// driverGroups returns the group that may use the driver, if not every user may. It never returns
// root's group, which has more rights than that.
func driverGroups(device string) []uint32 {
	var st unix.Stat_t
	if unix.Stat(device, &st) != nil || st.Mode&0o006 == 0o006 || st.Mode&0o060 != 0o060 || st.Gid == 0 {
		return nil
	}
	return []uint32{st.Gid}
}

// procGroups returns the group that sees all processes, where /proc is mounted so that not everybody does
// (hidepid). Root's own is none.
func procGroups(mounts string) []uint32 {
	text, _ := os.ReadFile(mounts) // without it there is no /proc either
	for line := range strings.Lines(string(text)) {
		field := strings.Fields(line)
		if len(field) < 4 || field[1] != "/proc" || field[2] != "proc" || !strings.Contains(field[3], "hidepid=") {
			continue
		}
		for option := range strings.SplitSeq(field[3], ",") {
			text, is := strings.CutPrefix(option, "gid=")
			if gid, err := strconv.ParseUint(text, 10, 32); is && err == nil && gid != 0 {
				return []uint32{uint32(gid)}
			}
		}
	}
	return nil
}
