package notify

import (
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"time"

	"ration/internal/agent"
	"ration/internal/connlimit"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/machine"
)

const (
	// quiet is how long the same problem of the same job or user is not sent again. Meanwhile it is counted.
	quiet = 10 * time.Minute
	// maxOfUser bounds the notifications about one user's jobs in quiet.
	maxOfUser = 20
	// A job is near its limit from nearLimit percent on, and not any more below farLimit percent.
	nearLimit, farLimit = 95, 90
	// gone is how long a GPU must be missing before it has failed. An agent that has just started, or a driver
	// that is loaded again, needs up to 30 seconds to find it.
	gone = time.Minute
	// overLasts is how long a job must be over its limit: what the driver says can be older than the limit, as of a job that
	// has just fallen asleep and lends its ration.
	overLasts = 5 * time.Second
)

// Watcher turns what an agent says into notifications.
type Watcher struct {
	log   *slog.Logger
	host  string
	since time.Time // events before it are old
	seen  agent.Seen
	// users bounds what is sent about each user's jobs. What is sent because a job goes around an operator's limit
	// has a bound of its own, escapes: a user can cause any number of the others, and must not silence it so.
	users, escapes *connlimit.Lines

	active map[subject]time.Time // problems that last; when to try again to send those over the bound, or zero
	over   map[subject]time.Time // since when jobs are over their limits
	sent   map[subject]*repeats
	gpus   map[string]*device // by UUID
}

// subject is a problem of a job, a user or a device.
type subject struct {
	kind string
	job  machine.JobID
	uid  int
	on   string // device
}

// repeats counts how often a problem was not sent.
type repeats struct {
	at    time.Time
	count int
	text  string
}

// device is a GPU that was seen.
type device struct {
	number int
	seen   time.Time
}

// NewWatcher returns a Watcher of what happens from now on.
func NewWatcher(log *slog.Logger, now time.Time) *Watcher {
	dropped := func(owner string, n int) {
		log.Warn(fmt.Sprintf("%d notifications about jobs of %s were dropped: there were more than %d in %v", n, owner, maxOfUser, quiet), "owner", owner, "dropped", n)
	}
	return &Watcher{log: log, host: hostname(), since: now, active: map[subject]time.Time{}, sent: map[subject]*repeats{}, gpus: map[string]*device{},
		users: connlimit.NewLines(maxOfUser, quiet, dropped), escapes: connlimit.NewLines(maxOfUser, quiet, dropped)}
}

// Update returns the notifications about a snapshot and new events. Call it also if neither has changed: some
// depend on time.
func (w *Watcher) Update(m *machine.Machine, events []machine.Event, now time.Time) (out []Notification) {
	w.flush(now)
	add := func(of subject, n Notification) (sent bool) {
		if n.Time.IsZero() {
			n.Time = now.UTC()
		}
		n.Kind, n.Host = of.kind, w.host
		n = n.printable()
		if sent = w.allow(of, &n, now); sent {
			out = append(out, n)
		}
		return sent
	}
	for i := range events {
		w.event(&events[i], add)
	}
	lasting := map[subject]time.Time{}
	start := func(of subject, n Notification) {
		again, lasts := w.active[of]
		if !lasts || !again.IsZero() && !now.Before(again) {
			again = time.Time{}
			if !add(of, n) {
				again = now.Add(quiet)
			}
		}
		lasting[of] = again
	}
	w.findings(m, now, start)
	w.nearLimits(m, lasting, start)
	w.devices(m, now, start)
	w.active = lasting
	return out
}

// flush forgets what has been quiet for long enough.
func (w *Watcher) flush(now time.Time) {
	w.users.Flush(now)
	w.escapes.Flush(now)
	maps.DeleteFunc(w.sent, func(of subject, r *repeats) bool {
		over := now.Sub(r.at) >= 2*quiet || now.Sub(r.at) >= quiet && r.count == 0
		if over && r.count > 0 {
			w.log.Info("the same happened again, and was not sent: "+r.text, "kind", of.kind, "dropped", r.count)
		}
		return over
	})
}

// allow reports whether a notification is sent, and counts it.
func (w *Watcher) allow(of subject, n *Notification, now time.Time) bool {
	if r := w.sent[of]; r != nil {
		if now.Sub(r.at) < quiet {
			r.count++
			return false
		}
		n.Repeated = r.count
	}
	bound := w.users
	if (n.Kind == OverLimit || n.Kind == Stop) && filepath.Dir(filepath.Dir(n.Path)) == job.RootFolder {
		bound = w.escapes
	}
	if n.UID > 0 && !bound.Allow(proc.Account(n.UID), n.User, now) {
		return false
	}
	w.sent[of] = &repeats{at: now, text: n.Text}
	return true
}

// event adds the notification of an event.
func (w *Watcher) event(e *machine.Event, add func(subject, Notification) bool) {
	if !w.seen.Add(e.ID()) || e.Time.Before(w.since) {
		return
	}
	of := subject{kind: e.Kind, job: e.JobID()}
	n := Notification{Time: e.Time, User: e.Owner, UID: e.UID, Job: e.Job, Path: e.Path, Device: -1, Text: e.Text}
	switch e.Kind {
	case machine.RequestRefused:
		if e.Denied != nil {
			if e.Denied.Own {
				return // nobody but the user can do anything about it, and it must not hide that there is no room
			}
			of, n.Device = subject{kind: PolicyRefused, uid: e.UID}, e.Denied.Device
			n.Remedy = e.Denied.Remedy()
		} else if e.Refusal != nil {
			n.Device = e.Refusal.Device
			n.Remedy = "ration why says which processes hold the memory"
		}
	case machine.ProcessDied:
	case machine.JobIdle:
		n.Remedy = "if it is not needed, ration stop ends it"
	case machine.ProcessesStopped:
		if e.Stop != nil {
			n.Device = e.Stop.Device
		}
	default:
		return
	}
	add(of, n)
}

// findings adds the findings that somebody should hear of.
func (w *Watcher) findings(m *machine.Machine, now time.Time, start func(subject, Notification)) {
	over := map[subject]time.Time{}
	jobs := map[string]*machine.Job{}
	for i := range m.Jobs {
		jobs[m.Jobs[i].Path] = &m.Jobs[i]
	}
	for _, f := range m.Findings {
		n := Notification{UID: -1, Job: f.Job, Path: f.Path, Device: f.Device, Text: f.Text, Remedy: f.Remedy}
		switch f.Kind {
		case machine.OverLimit:
			of := subject{kind: OverLimit, on: fmt.Sprint(f.Device)}
			if j := jobs[f.Path]; j != nil {
				of.job, n.User, n.UID = j.ID(), j.Owner, j.UID
			}
			since, known := w.over[of]
			if !known {
				since = now
			}
			if over[of] = since; now.Sub(since) >= overLasts {
				start(of, n)
			}
		case machine.DeviceFailed:
			start(subject{kind: GPUFailed, on: fmt.Sprint(f.Device)}, n)
		}
	}
	w.over = over
}

// nearLimits adds the jobs that hold almost all of their limits. A job stays near its limit until it holds less
// than farLimit percent.
func (w *Watcher) nearLimits(m *machine.Machine, lasting map[subject]time.Time, start func(subject, Notification)) {
	for i := range m.Jobs {
		j, changes := &m.Jobs[i], "ration limit changes the limit"
		if _, ruled := job.PolicyUser(j.Path); ruled {
			changes = "the limit is a part of the ration that the policy gives the user"
		}
		for k := range j.Devices {
			d := &j.Devices[k]
			of := subject{kind: NearLimit, job: j.ID(), on: fmt.Sprint(d.Device)}
			percent := 0.0
			if d.Limited && d.Limit > 0 && d.Over() == 0 && j.State != machine.Ended { // otherwise that is notified of
				percent = 100 * float64(d.Used) / float64(d.Limit)
			}
			switch {
			case percent >= nearLimit:
				start(of, Notification{User: j.Owner, UID: j.UID, Job: j.Title(), Path: j.Path, Device: m.DeviceOf(d),
					Text:   fmt.Sprintf("%s holds %s of its %s on device %d", humanfmt.JobOf(j.Title(), j.Owner), humanfmt.Bytes(d.Used), humanfmt.Bytes(d.Limit), d.Device),
					Remedy: "its next request may be refused; " + changes})
			case percent >= farLimit:
				if again, lasts := w.active[of]; lasts {
					lasting[of] = again
				}
			}
		}
	}
}

// devices adds the GPUs that the driver does not report any more.
func (w *Watcher) devices(m *machine.Machine, now time.Time, start func(subject, Notification)) {
	for _, g := range m.Devices {
		w.gpus[g.UUID] = &device{number: g.Device, seen: now}
	}
	for uuid, d := range w.gpus {
		if now.Sub(d.seen) < gone {
			continue
		}
		start(subject{kind: GPUFailed, on: fmt.Sprint(d.number)}, Notification{UID: -1, Device: d.number,
			Text: fmt.Sprintf("GPU %d (%s) is gone: the driver does not report it any more", d.number, uuid), Remedy: "nvidia-smi and the kernel's log (dmesg, Xid) say why"})
	}
}
