package policy

import (
	"errors"
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/proc"
	"ration/internal/region"
)

// note writes a line to the log: what happened to the ration of a user, or because of a request of the user. A user can
// make any number of requests, so the lines are bounded (mayLog).
func (k *keeper) note(uid int, text string) {
	if k.mayLog(uid) {
		k.log.Info(text, "user", proc.UserName(uid), "uid", uid)
	}
}

// say calls note, if there is a log.
func (r *rations) say(uid int, format string, args ...any) {
	if r.note != nil {
		r.note(uid, fmt.Sprintf(format, args...))
	}
}

// rationText formats the memory of limits after the text before: 8 GiB on GPU 0. It is empty if the devices are not known.
func (r *rations) rationText(before string, l region.Limits) string {
	devices := min(len(r.totals()), abi.Devices)
	if devices == 0 {
		return ""
	}
	sizes, closed := map[int]uint64{}, true
	for d := range devices {
		if bytes := l.Memory[d].Bytes(); bytes > 0 {
			sizes[d] = bytes
		}
		closed = closed && !l.MayUse(d)
	}
	switch {
	case closed:
		return before + "nothing now"
	case len(sizes) == 0:
		return before + "no limit of memory"
	}
	return before + humanfmt.OnGPUs(sizes)
}

// sayTaken says that the ration of another user was taken back for a user: in the log, or on root's terminal.
func (r *rations) sayTaken(uid, other int, evicted bool) {
	how, why := "lent", "sleeps, and gets it back before it wakes"
	if evicted {
		how, why = "taken back", "had no process"
	}
	text := fmt.Sprintf("the ration of %s is %s for %s: the job %s", proc.UserName(other), how, proc.UserName(uid), why)
	if r.note == nil {
		r.warn(text)
	}
	r.say(uid, "%s", text)
}

// noteWaits says that a user began to wait.
func (k *keeper) noteWaits(m *mustWait) {
	what := "a ration"
	if m.wakes {
		what = "the ration that was lent, to wake"
	}
	k.note(m.uid, fmt.Sprintf("%s waits for %s, %s: %s", proc.UserName(m.uid), what, humanfmt.OnGPUs(m.wants), m.why))
}

// noteWaited says how a user's wait ended.
func (k *keeper) noteWaited(m *mustWait, since int64, err error) {
	waited := humanfmt.Waited(time.Since(time.Unix(0, since)))
	switch {
	case err == nil:
		k.note(m.uid, fmt.Sprintf("%s has a ration after %s in the queue", proc.UserName(m.uid), waited))
	case errors.Is(err, errGone):
		k.note(m.uid, fmt.Sprintf("%s left the queue after %s: no program of the user waits any more", proc.UserName(m.uid), waited))
	default:
		k.note(m.uid, fmt.Sprintf("%s left the queue after %s without a ration: %v", proc.UserName(m.uid), waited, err))
	}
}

// noteRun says that a run has its part of a ration.
func (k *keeper) noteRun(uid int, name string, ration limit.Limits) {
	k.note(uid, fmt.Sprintf("run %s has a part of the ration of %s: %s", runTitle(uid, name), proc.UserName(uid), ration.Words()))
}

// runTitle returns the name of a run for people.
func runTitle(uid int, name string) string { return job.ShownName(name, job.RunPath(uid, name)) }
