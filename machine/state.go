package machine

import (
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/safepath"
	"ration/internal/termtext"
)

// addLaunch adds the content of the job's folder. The owner and the launching user come from the
// kernel; the command and its result were written by the launcher.
func (j *Job) addLaunch(l job.Launch, dir int, name string) {
	j.setOwner(dir, name)
	if uid, is := job.PolicyUser(j.Path); is { // its region is root's until it is handed to the user, and may have been removed just now
		j.UID, j.Owner = uid, proc.UserName(uid)
	}
	if l.UID >= 0 {
		j.Launcher = proc.UserName(l.UID)
	}
	if len(l.Info.Command) > 0 {
		j.Command = l.Info.Command
	}
	j.Started, j.Placed = timeOf(l.Info.Started), l.Info.Placed
	j.Labels = l.Info.Labels
	if r := l.Rest; r != nil {
		j.SleepAfter, j.CannotSleep = uint64(r.After.Milliseconds()), r.Cannot
		if r.Sleeps == j.Sleeps { // otherwise it has slept since then
			j.UnusedSince = timeOf(r.Since)
		}
	}
	j.Claimed = len(j.Labels) > 0 && (l.Info.Claimed || l.UID != 0 && job.PolicyInForce())
	j.countedIn = l.Info.Region
	j.ranAs = j.runOfRecord()
	j.Kubernetes = kubernetesOf(l.Kubernetes)
	if j.State = j.stateWith(l, time.Now()); j.State == Ended {
		j.Sleep = "" // no process of it sleeps
	}
	switch {
	case j.State != Ended:
	case l.End == nil:
		j.NoExit = len(l.Info.Command) > 0
	default:
		j.Exit, j.Ended = &Exit{Status: l.End.Status, Signal: l.End.Signal}, timeOf(l.End.Ended)
		if l.End.Left {
			j.Ended, j.CommandEnded = time.Time{}, j.Ended
		}
	}
}

// setOwner sets the owner and the identity of the region's file, if it is there.
func (j *Job) setOwner(dir int, name string) {
	var st unix.Stat_t
	if safepath.StatAt(dir, name, &st) == nil {
		j.file = job.FileOf(&st)
		j.UID, j.Owner = int(st.Uid), proc.UserName(int(st.Uid))
	}
}

// startingTime is how long a command that has used no GPU yet counts as starting. After that it is idle: a notebook may
// never use one.
const startingTime = 5 * time.Minute

// stateWith returns the job's state. The caller has set it to Running if a process holds a lock of
// the region.
func (j *Job) stateWith(l job.Launch, now time.Time) string {
	switch {
	case j.State == Running:
		return Running
	case l.Running && j.Claims == 0 && !l.Standing && (j.Started.IsZero() || now.Sub(j.Started) < startingTime):
		return Starting
	case l.Running, l.Standing:
		return Idle
	case l.Launched || j.Claims > 0 || j.err != nil:
		return Ended
	case now.Sub(j.Created) < job.StartTimeout:
		return Starting // not made by ration run: a program may be about to join
	}
	return Ended
}

// addHolders adds the processes that hold locks of an unreadable region, for example one of another
// version.
func (j *Job) addHolders(dir int, name string) {
	holders, err := region.LockHolders(dir, name, j.Path)
	if err != nil {
		return
	}
	for _, h := range holders {
		j.State = Running
		p := Process{Slot: -1, PID: h.PID, HostPID: h.PID, UID: -1, State: Live, Holdings: []Holding{}}
		if uid, comm, own, err := proc.Owner(h.PID); err == nil && h.PID != 0 && h.Verified {
			p.Verified, p.UID, p.User, p.Name = true, uid, proc.UserName(uid), termtext.Printable(comm)
			if own != 0 {
				p.PID = own
			}
		}
		j.Processes = append(j.Processes, p)
	}
}

// addOperatorLimits adds the limits beside a region that cannot be read, so that what the driver counts for the job is
// compared with them: a tenant that damages its region must not hide from that.
func (j *Job) addOperatorLimits(dir int, name string) {
	l, err := region.OpenOperatorLimitsAt(dir, name, j.Path)
	if err != nil {
		return // the job's limits were in its region
	}
	for d := range abi.Devices {
		if limit, err := l.Limit(d); err == nil && limit.IsSet() {
			total, _ := l.Total(d) // of the same number
			uuid, _ := l.UUID(d)
			j.Devices = append(j.Devices, Device{Device: d, UUID: uuidText(uuid), Limited: limit.Limited(), Limit: limit.Bytes(), Total: total})
		}
	}
	j.dropUnknown()
}

// timeOf converts Unix nanoseconds to a time. It returns the zero time for 0.
func timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

func kubernetesOf(k *job.Kubernetes) *Kubernetes {
	if k == nil {
		return nil
	}
	out := &Kubernetes{Namespace: k.Namespace, Claim: k.Claim, ClaimUID: k.ClaimUID, Pods: []Pod{}}
	for _, p := range k.Pods {
		out.Pods = append(out.Pods, Pod{Name: p.Name, UID: p.UID, Containers: append([]string{}, p.Containers...)})
	}
	return out
}
