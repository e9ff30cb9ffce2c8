package machine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/termtext"
)

// Smaller differences and amounts are not reported.
const (
	minDrift    = 64 << 20 // bytes, or the share of the process's memory below if that is more
	driftShare  = 50       // 2 %
	minOutside  = 64 << 20 // bytes held by a process of no job
	minReads    = 1000     // reads of a job's accounts
	gaveUpShare = 0.001    // part of them that gave up
	maxFindings = 64       // for one kind and one user
)

// driftBound returns how much the driver's count may differ from the job's.
func driftBound(held uint64) uint64 { return max(minDrift, held/driftShare) }

// findingsOf returns the findings about a machine.
func findingsOf(m *Machine) (out []Finding) {
	type of struct {
		kind    string
		account int
	}
	count := map[of]int{}
	addOf := func(uid int) func(Finding) {
		return func(f Finding) {
			key := of{f.Kind, accountOf(uid)}
			if count[key]++; count[key] <= maxFindings {
				out = append(out, f.printable())
			}
		}
	}
	add := addOf(0) // for the machine itself
	for _, g := range m.overbooked() {
		if g.Total > 0 && g.Rations > max(g.Total, knownTotal(m, g.UUID, job.User())) {
			jobs, left := humanfmt.Plural(g.Jobs, "job has", "jobs have"), "together, and may find none left within their limits"
			if g.Jobs == 1 {
				left = "alone, and may find none left within its limit"
			}
			add(Finding{Kind: Overbooked, Device: g.Device,
				Text:   fmt.Sprintf("device %d is overbooked: %s %s of its %s %s", g.Device, jobs, humanfmt.Bytes(g.Rations), humanfmt.Bytes(g.Total), left),
				Remedy: "lower a limit with ration limit, or start fewer jobs there"})
		}
	}
	for _, d := range m.recentlyDenied(time.Now()) {
		addOf(d.UID)(deniedFinding(&d))
	}
	for i := range m.Jobs {
		jobFindings(&m.Jobs[i], addOf(m.Jobs[i].UID))
	}
	for _, o := range m.Outside {
		if !o.isReported() || o.Exempt {
			continue
		}
		f := Finding{Kind: OutsideJobs, Device: o.Device, PID: o.PID, Text: fmt.Sprintf("%s holds %s of device %d, and ", outsideName(o), humanfmt.Bytes(o.Used), o.Device)}
		if o.Region != "" { // it may have a limit, which is not compared with anything here
			f.Text += "is in a job of a folder that is not read here: " + o.Region
			f.Remedy = "ration ps " + o.Region + " shows it; " + job.EnvFolder + " names the folder that is read"
		} else {
			f.Text += "belongs to no job"
			f.Remedy = "start it with ration run, so that it has a limit"
		}
		addOf(o.UID)(f)
	}
	return out
}

// overbooked returns the devices whose limits may be a finding. If the policy in force lets its rations come to more than a
// device has, that is what the operator wants: then only the limits of other jobs count.
func (m *Machine) overbooked() []GPU {
	full := func(g GPU) bool { return g.Rations > g.Total }
	if !slices.ContainsFunc(m.Devices, full) || !policyOverbooks() {
		return m.Devices
	}
	devices := slices.Clone(m.Devices)
	for i := range devices {
		devices[i].Rations, devices[i].Jobs = 0, 0
	}
	m.addRations(devices, func(j *Job) bool {
		_, is := job.PolicyUser(j.Path)
		return !is
	})
	return devices
}

// printable returns the finding as it can be written to a terminal, also by a program that has decoded it from JSON:
// users choose the names of files and processes in it. Path is the file's own.
func (f Finding) printable() Finding {
	f.Job, f.Text, f.Remedy = termtext.Printable(f.Job), termtext.Printable(f.Text), termtext.Printable(f.Remedy)
	return f
}

// accountOf is a variable for tests.
var accountOf = proc.Account

// exempt and policyOverbooks are variables for tests.
var (
	exempt          = job.Exempt
	policyOverbooks = job.PolicyOverbooks
)

// knownTotal returns the size of a device as recorded by jobs, or 0. Under a policy, the driver
// tells an ordinary user's programs, and so this one, their job's limit instead of the device's
// size. To root it tells the true size, so root does not use the jobs' values: jobs must not be
// able to hide that they hold more.
func knownTotal(m *Machine, uuid string, viewer int) (total uint64) {
	if viewer == 0 {
		return 0
	}
	for i := range m.Jobs {
		for _, on := range m.Jobs[i].Devices {
			if on.UUID == uuid && uuid != "" {
				total = max(total, on.Total)
			}
		}
	}
	return total
}

func outsideName(o Outside) string {
	switch {
	case o.Name == "":
		return fmt.Sprintf("pid %d, which cannot be seen from here,", o.PID)
	case o.Container != "":
		return fmt.Sprintf("%s (pid %d) of user %s in %s", o.Name, o.PID, o.User, o.Container)
	}
	return fmt.Sprintf("%s (pid %d) of user %s", o.Name, o.PID, o.User)
}

// jobFindings adds the findings about one job.
func jobFindings(j *Job, add func(Finding)) {
	of := Finding{Device: -1, Job: j.Title(), Path: j.Path}
	if j.Err() != nil {
		f := of
		f.Kind, f.Text = Unreadable, termtext.Printable(fmt.Sprintf("job %s cannot be read: %s", j.Title(), j.Error))
		f.Remedy = "end its processes, and remove it with ration rm"
		switch {
		case j.State == Ended && errors.Is(j.Err(), ErrVersion):
			f.Remedy = "remove it with ration rm"
		case j.State == Ended:
			f.Remedy = "remove it with ration rm --force"
		}
		add(f)
		for i := range j.Devices { // a job's limits that are an operator's
			addOverLimit(of, &j.Devices[i], add)
		}
		return
	}
	dead, held := 0, uint64(0)
	for _, p := range j.Processes {
		if p.State == Dead {
			dead++
			held += min(p.Held(), ^held)
		}
		for _, h := range p.Holdings {
			if h.DriverNow && p.State != Dead {
				addDrift(of, p, h, add)
			}
		}
	}
	if dead > 0 {
		f := of
		f.Kind = DeadProcesses
		f.Text = fmt.Sprintf("job %s counts %s for %s that did not leave", j.Title(), humanfmt.Bytes(held), humanfmt.Plural(dead, "dead process", "dead processes"))
		f.Remedy = DeadRemedy
		add(f)
	}
	if r := j.Reads; r.Reads >= minReads && r.BestEffortRatio > gaveUpShare {
		f := of
		f.Kind = GaveUp
		f.Text = fmt.Sprintf("%.2g %% of the reads of job %s's accounts gave up (%s of %s): what it shows of a process may be of two moments",
			100*r.BestEffortRatio, j.Title(), humanfmt.Count(r.BestEffort), humanfmt.Count(r.Reads))
		f.Remedy = "look again when it allocates less; if it stays, end the job, and report how it came about"
		add(f)
	}
	for i := range j.Devices {
		d := &j.Devices[i]
		addOverLimit(of, d, add)
		if d.Compute == nil {
			continue
		}
		if reason := unkept(j, d.Device); reason != "" {
			f := of
			f.Kind, f.Device = ShareUnkept, d.Device
			f.Text = termtext.Printable(fmt.Sprintf("the share of job %s of device %d's time is not enforced: %s", j.Title(), d.Device, reason))
			f.Remedy = "see ration why " + j.Title()
			add(f)
		}
	}
}

// Over returns how far what the driver counts for the job is beyond the limit, if that is more than the two
// can differ for a program that keeps to its limit; 0 if it is not, or if that is not known.
func (d *Device) Over() uint64 {
	if !d.Limited {
		return 0
	}
	return overBy(d.compared(), d.Limit)
}

// compared returns what counts for the limit.
func (d *Device) compared() uint64 { return d.Driver + min(d.EscapedElsewhere, ^d.Driver) }

func overBy(driver, limit uint64) uint64 {
	if driver <= limit || driver-limit <= driftBound(limit) {
		return 0
	}
	return driver - limit
}

func addOverLimit(of Finding, d *Device, add func(Finding)) {
	if d.Over() == 0 {
		return
	}
	f := of
	f.Kind, f.Device = OverLimit, d.Device
	f.Text = fmt.Sprintf("job %s is over its limit by %s: the driver counts %s of device %d for its processes, and the limit is %s",
		of.Job, humanfmt.Bytes(d.Over()), humanfmt.Bytes(d.Driver), d.Device, humanfmt.Bytes(d.Limit))
	if d.Escaped > 0 {
		f.Text += fmt.Sprintf(" (%s are of processes of the user outside the job)", humanfmt.Bytes(d.Escaped))
	}
	if d.EscapedElsewhere > 0 {
		f.Text += fmt.Sprintf("; processes of the user outside the job hold %s of other devices", humanfmt.Bytes(d.EscapedElsewhere))
	}
	f.Remedy = "look again: if it stays, the job goes around its limit; end its processes (docs/security.md)"
	if d.Escaped == 0 && d.EscapedElsewhere == 0 && overBy(d.Driver, d.Used) == 0 {
		f.Remedy = fmt.Sprintf("by its own account it holds %s, as after the limit was lowered: it keeps that and gets no more until it holds less than the limit; "+
			"if nobody has lowered it, the job goes around its limit (docs/security.md)", humanfmt.Bytes(d.Used))
	}
	add(f)
}

func addDrift(of Finding, p Process, h Holding, add func(Finding)) {
	f, more, word := of, h.Driver, "more"
	if h.Driver >= h.Total {
		more -= h.Total
	} else {
		more, word = h.Total-h.Driver, "less"
	}
	if more <= driftBound(h.Total) {
		return
	}
	f.Kind, f.Device, f.PID = Drift, h.Device, p.driverPID()
	f.Text = fmt.Sprintf("the driver counts %s %s than job %s for %s on device %d",
		humanfmt.Bytes(more), word, of.Job, nameAndPID(termtext.Printable(p.Name), p.driverPID(), p.Verified), h.Device)
	f.Remedy = "look again: if it stays, the process takes memory in a way that is not counted (see docs/coverage.md)"
	if word == "less" {
		f.Remedy = "look again: if it stays, the job's accounts are wrong; end the job, and report how it came about"
	}
	add(f)
}

// unkept returns why a job's share is not enforced in one of its processes, or "".
func unkept(j *Job, device int) string {
	for _, p := range j.Processes {
		i := slices.IndexFunc(p.Holdings, func(h Holding) bool {
			return h.Device == device && h.Compute != nil && h.Compute.State == NotEnforced
		})
		if i >= 0 && p.State != Dead {
			return p.Holdings[i].Compute.Reason
		}
	}
	return ""
}
