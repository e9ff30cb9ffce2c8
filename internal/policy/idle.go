package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ration/internal/agent/privsep"
	"ration/internal/job"
	"ration/internal/proc"
)

// IdleCommand is the command that puts a job to sleep when it has done nothing: PATH AFTER. The service starts it for
// users with sleep_after, with their rights. Root itself reads no region of a user for that. The command writes a line when
// it knows since when the job is unused (ReportUnused), and a line of its input asks it to make room.
const IdleCommand = "sleep-when-idle"

// Intervals of the watch for jobs that need such a process.
const (
	idleEvery = 5 * time.Second
	// idlePause is how long a job is left alone after its process has ended before the job. A user can end it at will.
	idlePause = time.Minute
)

// idleEnviron are the variables that these processes get, or how their names begin.
var idleEnviron = []string{"LD_LIBRARY_PATH=", "FAKEGPU_", "CUDA_", "NVIDIA_"}

// idleJob is a job that may fall asleep.
type idleJob struct {
	uid     int
	after   time.Duration
	created int64 // a later job of the same path is another; its region may have the same device and inode
}

// idlePauses are the jobs that are left alone because their process has ended, and until when, by the path of the region.
type idlePauses map[string]idleRest

// idleRest is the pause of the job that was made at a time.
type idleRest struct {
	created int64
	until   time.Time
}

// end ends the pauses that are over. The process of a job that has no processes any more, or that was made anew, has ended
// with its job.
func (p idlePauses) end(want map[string]idleJob, now time.Time) {
	for path, pause := range p {
		if j, there := want[path]; !there || j.created != pause.created || now.After(pause.until) {
			delete(p, path)
		}
	}
}

// sleepIdle keeps a process running for each job with processes whose user has sleep_after, until the context ends. It also
// removes the jobs that have lent their ration and whose processes have ended.
func (k *keeper) sleepIdle(ctx context.Context) {
	running := &k.idle
	ended := make(chan string)
	pauses := idlePauses{}
	tick := time.NewTicker(idleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			for range running.all() { // their contexts have ended as well
				<-ended
			}
			return
		case path := <-ended:
			if p := running.all()[path]; !p.stopped {
				pauses[path] = idleRest{p.created, time.Now().Add(idlePause)}
			}
			running.set(path, nil)
			continue
		case <-tick.C:
		}
		k.removeLent()
		now, want := time.Now(), k.idleJobs()
		pauses.end(want, now)
		is := running.all()
		for path, p := range is {
			if want[path] != p.idleJob { // the policy has changed, the job has no process, or it is another
				p.stopped = true
				p.cancel()
			}
		}
		for path, j := range want {
			if _, left := pauses[path]; left || is[path] != nil {
				continue
			}
			one, cancel := context.WithCancel(ctx)
			p := &idleProcess{idleJob: j, path: path, cancel: cancel, ask: make(chan struct{}, 1)}
			running.set(path, p)
			go func() {
				if err := k.watch(one, p); err != nil && one.Err() == nil && k.mayLog(j.uid) {
					k.log.Warn("the process that puts an idle job to sleep has ended", "user", proc.UserName(j.uid), "error", err)
				}
				cancel()
				ended <- path
			}()
		}
	}
}

// idleJobs returns the jobs and runs with processes that may fall asleep, by the path of their region.
func (k *keeper) idleJobs() map[string]idleJob {
	k.turn.lock()
	p := k.policy
	k.turn.unlock()
	out := map[string]idleJob{}
	if !p.sleeps() {
		return out
	}
	for _, uid := range Users() {
		rule, err := p.For(uid)
		if err != nil || rule == nil || rule.SleepAfter == 0 {
			continue
		}
		for _, j := range append(job.RunsOf(uid), jobOf(uid)) {
			if created, whole := job.StandingSince(j); whole && errors.Is(job.CheckRemovable(j, true), job.ErrLiving) {
				out[j.Path] = idleJob{uid, rule.SleepAfter, created}
			}
		}
	}
	return out
}

// sleeps reports whether a rule has sleep_after.
func (p *Policy) sleeps() bool { return p.has(func(r *Rule) bool { return r.SleepAfter > 0 }) }

// sleepsUnmeasured reports whether a rule has sleep_after, and no cap for which the library would measure its jobs.
func (p *Policy) sleepsUnmeasured() bool {
	return p.has(func(r *Rule) bool { return r.SleepAfter > 0 && !r.Default.ComputeMax.IsSet() })
}

// has reports whether a rule is one of those.
func (p *Policy) has(is func(*Rule) bool) bool {
	has := func(r *Rule) bool { return r != nil && is(r) }
	return has(p.Everybody) || slices.ContainsFunc(byLine(p.Users), has) || slices.ContainsFunc(byLine(p.Groups), has)
}

// watch runs the process, and shows and logs why the job cannot sleep, which the process cannot: the job's folder is root's.
func (k *keeper) watch(ctx context.Context, p *idleProcess) error {
	rest, err := job.WatchRest(filepath.Dir(p.path))
	if err != nil {
		return err
	}
	defer rest.Close()
	if err := errors.Join(rest.ShowTo(p.uid), rest.Write(job.Rest{After: p.after})); err != nil {
		return err
	}
	p.onCannot = func(cannot string) {
		_ = rest.Write(job.Rest{After: p.after, Cannot: cannot}) // it is in the log
		if cannot != "" {
			k.note(p.uid, fmt.Sprintf("%s should sleep, and cannot: %s", job.ShownName("", p.path), strings.TrimPrefix(cannot, "it cannot sleep: ")))
		}
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env = []string{"ration", IdleCommand, p.path, p.after.String()}, []string{"PATH=/usr/bin:/bin"}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	go p.forward(ctx, in)
	cmd.Stdout = p
	for _, entry := range os.Environ() {
		if slices.ContainsFunc(idleEnviron, func(name string) bool { return strings.HasPrefix(entry, name) }) {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	gid, err := proc.PrimaryGroup(p.uid)
	if err != nil {
		return err
	}
	return privsep.RunAs(ctx, cmd, uint32(p.uid), gid)
}
