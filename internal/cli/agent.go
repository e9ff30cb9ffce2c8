package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/agent"
	"ration/internal/agent/privsep"
	"ration/internal/job"
	"ration/internal/region"
)

// defaultListen is the address of the metrics of root's agent.
const defaultListen = "127.0.0.1:9410"

type agentFlags struct {
	listen     string
	jobMetrics bool
	logJSON    bool
	onEscape   string
	grace      time.Duration
	idleAfter  time.Duration
	reader     bool // hidden: this process is the reader of root's agent
}

func newAgentCommand(a *app) *cobra.Command {
	f := agentFlags{}
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Watch the machine, and answer requests about it",
		Long: `Watch the jobs of this user, or for root the jobs of all users, until SIGTERM
or Ctrl-C. When a process of a job dies, the agent notices it within a moment,
and its memory is returned to the job. The agent keeps the history of the last
15 minutes and the latest 4096 events, of which each user has a fair part. It
answers requests on a socket: agent.sock in the folder of jobs, which is
/run/ration for root. Its own user and root see everything. Other users see
their own jobs, and how much of each device is allotted.

As root it is two processes, which end together. One reads files of users and
answers requests. It runs as user ration, which can read everything and change
nothing. The other one runs ration reap as the users, to return the memory of
dead processes. If there is no user ration, the agent is one process of root,
and the log says so.

If systemd passes the socket to it (ration-agent.socket), the agent uses that
one, and leaves it open for the next agent. Clients that connect in between
wait.

The agent is optional: jobs and all commands work without it. If it runs,
ration ps, top, limit, why and events use it.

Root's agent serves metrics to Prometheus at ` + defaultListen + `, which every user
of the machine can reach. The metrics of each job have its name and its user,
as the list of processes has. --job-metrics=false leaves them out; then there
are no alerts about single jobs. At most 256 jobs have metrics of their own,
the largest of each user in turn; ration_jobs_without_series counts the others.

With --on-escape=stop, root's agent ends processes that go around a limit which
root owns: of a policy, of root's ration run --keep, of containers and clusters.
If the driver counts more than the limit for a job's processes, or for all
processes of a policy's user, for as long as --grace, they get SIGTERM. After
the same time again they get SIGKILL. A job whose limit was lowered below what
it holds is over its limit as well. A process of root is never ended, nor one of
another user than the job's. See docs/security.md before you use it.

A job that holds memory and has done nothing on its GPUs for --idle-after is
idle: ration ps, top, the page, metrics and an event say so. For a job with a
cap the library has measured that; of others the driver's samples are used. A
job of which neither is known is never idle.

The log goes to standard error; in systemd's journal each line has its priority.

Exit status: 0 when it was asked to end; 1 if it could not start, for example
because another agent runs.`,
		Example: "  ration agent\n  ration agent --listen 127.0.0.1:9999 --job-metrics=false",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runAgent(cmd, f) },
	}
	cmd.Flags().StringVar(&f.listen, "listen", "", "serve metrics at this `address`; 'none' for nowhere (default "+defaultListen+" for root, none for others)")
	cmd.Flags().BoolVar(&f.jobMetrics, "job-metrics", true, "serve the metrics of each job there, too")
	cmd.Flags().BoolVar(&f.logJSON, "log-json", false, "write the log as JSON, a line each")
	cmd.Flags().StringVar(&f.onEscape, "on-escape", onEscapeReport, "what to do about a job that holds more than its limit: `report|stop` (stop: root only)")
	cmd.Flags().DurationVar(&f.grace, "grace", defaultGrace, "how long a job may be over its limit before SIGTERM, and again before SIGKILL")
	cmd.Flags().DurationVar(&f.idleAfter, "idle-after", agent.DefaultIdleAfter, "how long a job may hold memory and do nothing before it is idle; 0 for no such state")
	cmd.Flags().BoolVar(&f.reader, "reader", false, "run as the reader of root's agent")
	_ = cmd.Flags().MarkHidden("reader") // cannot fail: the flag exists
	return cmd
}

// Values of --on-escape.
const (
	onEscapeReport = "report"
	onEscapeStop   = "stop"
)

// defaultGrace is the default of --grace, and minGrace the least: the driver is asked every five seconds.
const (
	defaultGrace = 30 * time.Second
	minGrace     = time.Second
)

// checkEscape checks the flags about jobs over their limits, and reports whether to end their processes.
func (f *agentFlags) checkEscape() (stop bool, err error) {
	switch {
	case f.onEscape == onEscapeReport:
		return false, nil
	case f.onEscape != onEscapeStop:
		return false, usageError("--on-escape=%s: there are report and stop", f.onEscape)
	case f.grace < minGrace:
		return false, usageError("--grace=%v: at least %v", f.grace, minGrace)
	case !f.reader && !job.AllUsers():
		return false, usageError("--on-escape=stop: only root's agent ends processes (a limit of your own job is yours to keep)")
	}
	return true, nil
}

// checkListen checks the form of an address before anything is started.
func checkListen(address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return usageError("--listen=%q: not an address (use HOST:PORT, like 127.0.0.1:9999)", address)
	}
	return nil
}

// memoryGoal is the memory that the agent's garbage collector tries to stay below: half of what its unit
// allows.
const memoryGoal = 256 << 20

func (a *app) runAgent(cmd *cobra.Command, f agentFlags) error {
	if a.json {
		return usageError("ration agent prints no result (for a log in JSON use --log-json; for the machine ration ps --json)")
	}
	if os.Getenv("GOGC") == "" {
		// The agent runs for long and allocates little: save memory by collecting garbage more
		// often.
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		// The bounds of each user keep the agent below this; garbage must not add to it.
		debug.SetMemoryLimit(memoryGoal)
	}
	if f.idleAfter < 0 {
		return usageError("--idle-after=%v: not a duration (use 10m, or 0)", f.idleAfter)
	}
	ctx, stop := untilSignal()
	defer stop()
	opts := agent.Options{Folder: job.Folder(), Usage: usagePath(), IdleAfter: f.idleAfter, Listen: f.listen, JobMetrics: f.jobMetrics, Version: version, Log: newLog(a.err.Writer, f.logJSON), Reap: reapAs, PolicyUp: job.PolicyUp}
	ends, err := f.checkEscape()
	if err != nil {
		return err
	}
	opts.Grace = f.grace
	if ends && !region.OnHost() {
		ends = false
		opts.Log.Warn("no process of a job over its limit is ended: the driver lists the PIDs of the host, which this PID namespace does not have (run the agent outside of containers)")
	}
	if ends {
		opts.Stop = func(_ context.Context, s privsep.Stop) ([]int, error) { return s.Do() }
	}
	if f.reader {
		return runReader(ctx, stop, opts)
	}
	switch {
	case f.listen == "none":
		opts.Listen = ""
	case f.listen != "":
		if err := checkListen(f.listen); err != nil {
			return err
		}
	case !cmd.Flags().Changed("listen") && job.AllUsers():
		opts.Listen = defaultListen
	}
	if job.AllUsers() {
		if err := privsep.Isolate(); err != nil {
			return err
		}
	}
	if err := makeAgentFolder(opts.Folder); err != nil {
		return err
	}
	claim, err := agent.ClaimFolder(opts.Folder)
	if err != nil {
		return err
	}
	defer claim.Release()
	if job.AllUsers() {
		err := runParent(ctx, claim, opts, a.err.Writer, f.logJSON)
		if !errors.Is(err, errOneProcess) {
			return err
		}
		opts.Log.Warn("files of users are read as root", "error", err)
	}
	return watch(ctx, stop, opts, claim.Listener(), func() { agent.Notify("READY=1") }, func() { agent.Notify("STOPPING=1") })
}

// watch runs an agent until the context ends.
func watch(ctx context.Context, stop func(), opts agent.Options, socket net.Listener, ready, stopping func()) error {
	d, err := agent.New(opts)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() {
		err := d.Serve(ctx, socket)
		stop()
		served <- err
	}()
	err = d.Run(ctx, func() {
		opts.Log.Info("watching", "folder", job.Folder(), "all_users", job.AllUsers(), "version", version)
		ready()
	})
	stopping()
	opts.Log.Info("ending")
	return errors.Join(err, <-served)
}

// makeAgentFolder makes the folder of jobs, unless it exists. All users may enter root's folder, as
// the packages make it; each job's own folder is closed.
func makeAgentFolder(folder string) error {
	mode := os.FileMode(0o700)
	if job.AllUsers() {
		mode = 0o755
	}
	if err := os.MkdirAll(folder, mode); err != nil {
		return fmt.Errorf("making the folder of jobs: %w (name another in %s)", err, job.EnvFolder)
	}
	reason, err := job.UntrustedReason(folder)
	if err == nil && reason != "" {
		err = fmt.Errorf("folder %s %s: %w", folder, reason, job.ErrFolder)
	}
	return err
}

// nobodyGroup is the group of processes that run as another user. They need only the rights of that
// user.
const nobodyGroup = 65534

// reapAs returns the memory of dead processes to their jobs, by a process of the user that owns the
// regions. If this process is root's, that one becomes the user's only after it has been started.
func reapAs(ctx context.Context, paths []string, uid int) error {
	args := []string{"ration", "reap"}
	if os.Geteuid() == 0 && uid != 0 {
		args = append(args, "--as="+strconv.Itoa(uid))
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env = append(append(args, "--"), paths...), []string{"PATH=/usr/bin:/bin"}
	return privsep.RunFor(ctx, cmd, uint32(uid))
}
