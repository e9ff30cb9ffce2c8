package web

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"ration/internal/humanfmt"
	"ration/internal/node"
	"ration/internal/termtext"
	"ration/machine"
)

// Bounds of the details of one job; ration ps and ration why show everything.
const (
	maxProcesses = 64
	maxRefusals  = 8
	maxDeaths    = 8
)

// lineEnd is where a full bar ends: the mark of the limit is there.
const lineEnd = 0.98

// maxDeviceLabel bounds the letters of the numbers of a job's devices.
const maxDeviceLabel = 10

// jobLine is a job's use of one device, for the template.
type jobLine struct {
	Label         string
	Used, Of      string
	Share         string // per cent of the limit; empty without a limit
	Full          bool   // nearly the whole limit is used
	Over          string // how far it is over its limit, as the driver counts; empty if it is not
	Aside         string // what is in host memory; empty if nothing is
	W, Limit      string // of the bar: the used part, and the position of the limit
	Peak          string // position of the peak in the bar; empty if it is the current use
	Summary       string
	Pattern       string // over the colour of the bar
	Compute       string
	ComputeDetail string
}

// processRow is a process and its use of one device, for the template.
type processRow struct {
	Depth                          int
	Indent                         string
	PID, Host, User, State, Device string
	Context, Module, Data, Driver  string
	Holds, Drift, Compute          string
	In, Name                       string
}

// saidRow is a sentence with its time.
type saidRow struct {
	Clock, When, Text string
	Times             int
}

// jobView is a job for the template.
type jobView struct {
	ID, Name, Owner        string
	Holder, Class, Pattern string // what the colour stands for, and the colour
	Sort                   sortKeys
	State, StateWord       string
	Since, SinceWhen       string // when it started or ended
	Ending                 string // how it ended
	Error                  string
	Over                   bool // it is over a limit
	Lines, More            []jobLine
	Compute                []string // sentences about shares and caps
	Sleep                  string   // sentence about its sleep
	CannotSleep            bool     // it should sleep, and cannot
	Processes              string
	Refused, Died          string // number and noun; empty for 0
	Command, Path          string
	Rows                   []processRow
	HasDevice, HasHost     bool
	HasIn, HasCompute      bool
	Hidden                 int // processes that are not shown
	Refusals, Deaths       []saidRow
	Claims                 string // explains the question mark, if there is one
	MayChange              bool
	MayNot                 string // why the viewer may not change the limits
	Form                   string
	Limits                 []limitRow
	Devices                []limitDevice
	Now                    limitRow // the limits of all devices, as far as they are the same
	Damaged                uint64
	Searchable             string
}

// sortKeys are what the script sorts jobs by.
type sortKeys struct {
	Since         int64
	Used, Refused uint64
	Share         int // per mille of the limit, of the device that is fullest; -1 without a limit
}

// jobOrder is the order of jobs by their states.
var jobOrder = map[string]int{machine.Running: 0, machine.Idle: 1, machine.Starting: 2, machine.Ended: 3}

// drawJobs draws the jobs that have changed, and lists all. Running jobs come first, those that
// hold most at the top. Sizes are compared by powers of two, so that two jobs of about the same
// size do not swap places all the time.
func (h *hub) drawJobs(m *machine.Machine, fragments map[string]string, lists map[string][]string) {
	jobs := make([]*machine.Job, len(m.Jobs))
	for i := range m.Jobs {
		jobs[i] = &m.Jobs[i]
	}
	slices.SortStableFunc(jobs, func(a, b *machine.Job) int {
		if a.State == machine.Ended && b.State == machine.Ended {
			return cmp.Or(endOf(b).Compare(endOf(a)), b.Created.Compare(a.Created))
		}
		return cmp.Or(cmp.Compare(jobOrder[a.State], jobOrder[b.State]), cmp.Compare(bits.Len64(b.Held()), bits.Len64(a.Held())), cmp.Compare(a.Title(), b.Title()), cmp.Compare(a.Path, b.Path))
	})
	devices := ""
	for _, g := range m.Devices {
		devices += fmt.Sprintf("%d %s\n", g.Device, g.UUID)
	}
	if devices != h.devices { // the devices have other numbers now
		h.jobs, h.devices = map[string]drawnJob{}, devices
	}
	lists["jobs"], lists["ended"] = []string{}, []string{}
	counts := map[string]map[int]int{"jobs": {}, "ended": {}} // by account
	listOf := func(j *machine.Job) string {
		if j.State == machine.Ended {
			return "ended"
		}
		return "jobs"
	}
	live, ended, account := 0, 0, accounts()
	for _, j := range jobs {
		counts[listOf(j)][account(j.UID)]++
		if j.State == machine.Ended {
			ended++
		} else {
			live++
		}
	}
	// The size of a job is a claim of its user, who can have any number of jobs.
	share := map[string]int{"jobs": fairShare(counts["jobs"], maxJobs), "ended": fairShare(counts["ended"], maxJobs)}
	shown := map[string]map[int]int{"jobs": {}, "ended": {}}
	drawn := map[string]drawnJob{}
	for _, j := range jobs {
		id, in, user := elementID(j.ID()), listOf(j), account(j.UID)
		if _, twice := drawn[id]; twice || shown[in][user] == share[in] {
			continue
		}
		shown[in][user]++
		lists[in] = append(lists[in], id)
		of, may := h.colours.style(h.holder(j)), h.mayChange(j)
		before, known := h.jobs[id]
		if denied := node.DeniedTo(m.Denied, j); !known || !before.same(j, of, may, denied) {
			before = drawnJob{*j, of, may, denied}
			fragments[id] = render("job", h.job(m, j, of, may))
		}
		drawn[id] = before
	}
	h.jobs = drawn
	fragments["jobs-head"] = render("jobs-head", jobsHead{live, live - len(lists["jobs"]), h.opts.Viewer, h.opts.Viewer == ""})
	fragments["ended-head"] = render("ended-head", endedHead{ended + m.Hidden, ended + m.Hidden - len(lists["ended"])})
}

type jobsHead struct {
	Count, Hidden int
	Viewer        string
	All           bool
}

type endedHead struct{ Count, Hidden int }

func (h *hub) mayChange(j *machine.Job) bool {
	return h.opts.MayChange != nil && j.State != machine.Ended && h.opts.MayChange(j)
}

// endOf returns when a job ended, or at least its command.
func endOf(j *machine.Job) time.Time { return cmp.Or(j.Ended, j.CommandEnded) }

func (h *hub) job(m *machine.Machine, j *machine.Job, of style, mayChange bool) jobView {
	v := jobView{ID: elementID(j.ID()), Holder: h.holder(j), Class: of.Class(), Pattern: of.Pattern(), Name: jobName(j), State: j.State, StateWord: node.StateWords(j),
		Error: termtext.Printable(j.Error), Command: termtext.Printable(strings.Join(j.Command, " ")), Path: termtext.Printable(j.Path),
		MayChange: mayChange, Form: h.opts.form, Damaged: j.Damaged}
	if h.opts.Viewer == "" {
		v.Owner = v.Holder
	}
	v.Searchable = strings.ToLower(strings.Join([]string{v.Name, j.Owner, v.Holder, v.Command}, " "))
	begin := cmp.Or(j.IdleSince, j.Started, j.Created)
	if j.State == machine.Ended {
		begin = endOf(j)
		v.Ending = endingOf(j.Exit)
	}
	if j.Sleep != "" {
		v.State, begin = "sleeping", j.SleepSince
	}
	v.Since, v.SinceWhen = clock(begin)
	v.Sleep, v.CannotSleep = sleepSentence(j), j.CannotSleep != "" && j.Sleep == ""
	v.Sort = sortKeys{Since: begin.Unix(), Used: j.Held(), Share: -1}
	if begin.IsZero() {
		v.Sort.Since = 0
	}
	refused := node.DeniedTo(m.Denied, j)
	var used []node.DeviceRange
	for _, d := range node.OpenRanges(j) {
		line := h.line(m, &d)
		refused += d.Refused
		v.Over = v.Over || line.Over != ""
		if d.Limited && d.Limit > 0 {
			v.Sort.Share = max(v.Sort.Share, int(1000*float64(d.Used)/float64(d.Limit)))
		}
		// For a device that was never used, only its limit is shown.
		if d.Peak > 0 || d.Used > 0 || d.Refused > 0 || line.Over != "" {
			used = append(used, d)
			v.Lines = append(v.Lines, line)
			if line.ComputeDetail != "" {
				v.Compute = append(v.Compute, line.ComputeDetail)
			}
		} else {
			v.More = append(v.More, line)
		}
	}
	if len(v.Lines) == 0 && len(v.More) > 0 {
		v.Lines, v.More = v.More[:1], v.More[1:]
	}
	if len(v.Lines) > 1 { // a job has one line; those of its devices are below it
		v.Lines, v.More = []jobLine{sumLine(m, used, v.Lines)}, append(v.Lines, v.More...)
	}
	v.Sort.Refused = refused
	h.addLimits(&v, m, j)
	v.Processes = plural(len(j.Processes), "process", "processes")
	if refused > 0 {
		v.Refused = humanfmt.Count(refused) + " " + word(int(min(refused, 2)), "refusal", "refusals")
	}
	if j.Died > 0 {
		v.Died = humanfmt.Count(j.Died) + " died"
	}
	for i := range v.Lines {
		v.Lines[i].Pattern = v.Pattern
	}
	for i := range v.More {
		v.More[i].Pattern = v.Pattern
	}
	h.addRows(&v, m, j)
	h.addSaid(&v, j)
	return v
}

// sleepSentence says what is known of a job's sleep. It has no time in it that passes: a job that does not change is not drawn again.
func sleepSentence(j *machine.Job) string {
	still := *j
	still.UnusedSince = time.Time{}
	text := node.SleepText(&still, time.Time{})
	if text == "" {
		return ""
	}
	return sentence(strings.ToUpper(text[:1]) + text[1:])
}

func endingOf(e *machine.Exit) string {
	switch {
	case e == nil:
		return ""
	case e.Signal != 0:
		return fmt.Sprintf("by signal %d (%v)", e.Signal, syscall.Signal(e.Signal))
	}
	return fmt.Sprintf("exit status %d", e.Status)
}

// deviceLabel returns the machine's name for a job's device.
func deviceLabel(m *machine.Machine, d *node.DeviceRange) string {
	if d.Last > d.Device.Device {
		return "GPU " + strings.ReplaceAll(d.String(), "-", "–")
	}
	if at := m.DeviceOf(&d.Device); at >= 0 {
		return fmt.Sprintf("GPU %d", m.Devices[at].Device)
	}
	return fmt.Sprintf("GPU %d", d.Device.Device)
}

// line draws a job's use of a device. The bar is as long as the limit, or as the peak if that is
// higher, or as the device if there is no limit.
func (h *hub) line(m *machine.Machine, d *node.DeviceRange) jobLine {
	out := jobLine{Label: deviceLabel(m, d), Used: humanfmt.Bytes(d.Used), Of: "no limit"}
	scale := max(d.Used, d.Peak)
	switch {
	case d.Limited:
		scale = max(scale, d.Limit)
		out.Of = "of " + humanfmt.Bytes(d.Limit)
	default:
		scale = max(scale, d.Total)
	}
	of := func(bytes uint64) string {
		if scale == 0 {
			return percent(0)
		}
		return percent(lineEnd * float64(bytes) / float64(scale))
	}
	out.W = of(d.Used)
	if d.Limited && d.Limit > 0 {
		share := float64(d.Used) / float64(d.Limit)
		out.Share, out.Full, out.Limit = fmt.Sprintf("%.0f %%", 100*share), share > 0.95, of(d.Limit)
	}
	if d.Peak > d.Used {
		out.Peak = of(d.Peak)
	}
	out.Summary = fmt.Sprintf("%s: %s %s, peak %s", out.Label, out.Used, out.Of, humanfmt.Bytes(d.Peak))
	if d.Aside > 0 {
		out.Aside = humanfmt.Bytes(d.Aside) + " put aside"
		out.Summary += ", " + out.Aside
	}
	if d.Over() > 0 {
		out.Over = "over its limit by " + humanfmt.Bytes(d.Over())
		out.Summary += ", " + out.Over
	}
	if d.Compute != nil {
		out.Compute, out.ComputeDetail = d.Compute.Short(), out.Label+": "+d.Compute.Sentence()+"."
	}
	return out
}

// sumLine draws a job's use of several devices, of which lines has the details.
func sumLine(m *machine.Machine, devices []node.DeviceRange, lines []jobLine) jobLine {
	var used, limit, total, aside uint64
	var numbers []int
	full, over, limited := false, "", true
	for i, d := range devices {
		used, limit, limited = used+min(d.Used, ^used), limit+min(d.Limit, ^limit), limited && d.Limited
		total += min(d.Total, ^total)
		aside += min(d.Aside, ^aside)
		full, over = full || lines[i].Full, cmp.Or(over, lines[i].Over)
		number := d.Device.Device
		if at := m.DeviceOf(&d.Device); at >= 0 {
			number = m.Devices[at].Device
		}
		numbers = append(numbers, number)
	}
	out := jobLine{Label: deviceNumbers(numbers, 0), Used: humanfmt.Bytes(used), Of: "no limit", Full: full, Over: over, W: percent(lineEnd * float64(used) / float64(max(used, total, 1)))}
	if utf8.RuneCountInString(out.Label) > maxDeviceLabel {
		out.Label = plural(len(devices), "GPU", "GPUs")
	}
	if limited && limit > 0 {
		share := float64(used) / float64(limit)
		out.Of, out.Share = "of "+humanfmt.Bytes(limit), fmt.Sprintf("%.0f %%", 100*share)
		out.W, out.Limit = percent(lineEnd*min(1, share)), percent(lineEnd)
	}
	if aside > 0 {
		out.Aside = humanfmt.Bytes(aside) + " put aside"
	}
	summaries := make([]string, len(lines))
	for i := range lines {
		summaries[i] = lines[i].Summary
	}
	out.Summary = strings.Join(summaries, "; ")
	return out
}

// addRows adds the processes as a tree, with a row for each device of which a process holds memory.
func (h *hub) addRows(v *jobView, m *machine.Machine, j *machine.Job) {
	label := map[int]string{}
	for i := range j.Devices {
		d := node.DeviceRange{Device: j.Devices[i], Last: j.Devices[i].Device}
		label[d.Device.Device] = strings.TrimPrefix(deviceLabel(m, &d), "GPU ")
	}
	shown, devices := 0, map[string]bool{}
	for p, depth := range node.Tree(j.Processes) {
		if shown++; shown > maxProcesses {
			v.Hidden = len(j.Processes) - maxProcesses
			break
		}
		if !p.Verified {
			v.Claims = humanfmt.ClaimNote + "."
		}
		row := processRow{Depth: depth, Indent: strings.Repeat("\u2003", min(depth, 8)), PID: humanfmt.Claim(fmt.Sprint(p.PID), p.Verified), User: p.User, State: p.State,
			In: termtext.Printable(p.Container), Name: humanfmt.Claim(termtext.Printable(p.Name), p.Verified)}
		if depth > 0 {
			row.Indent += "└ "
		}
		if p.HostPID != 0 && p.HostPID != p.PID {
			row.Host = humanfmt.Claim(fmt.Sprint(p.HostPID), p.Verified)
			v.HasHost = true
		}
		v.HasIn = v.HasIn || row.In != ""
		if len(p.Holdings) == 0 {
			v.Rows = append(v.Rows, row)
		}
		for i, hold := range p.Holdings {
			r := row
			if i > 0 {
				r.PID, r.Host, r.User, r.State, r.In = "", "", "", "", ""
			}
			r.Device, r.Holds = label[hold.Device], humanfmt.Short(hold.Total)
			r.Context, r.Module, r.Data, r.Driver = humanfmt.Short(hold.Context), humanfmt.Short(hold.Module), humanfmt.Short(hold.Data), humanfmt.Short(hold.Overhead)
			r.Drift = drift(&hold)
			devices[r.Device] = true
			if c := hold.Compute; c != nil {
				r.Compute = cmp.Or(c.State, "–")
				v.HasCompute = true
			}
			v.Rows = append(v.Rows, r)
		}
	}
	v.HasDevice = len(devices) > 1
}

// drift describes how much more or less the driver counts than the job.
func drift(h *machine.Holding) string {
	switch {
	case !h.DriverNow:
		return "–"
	case h.Driver == h.Total:
		return "0"
	case h.Driver > h.Total:
		return "+" + humanfmt.Short(h.Driver-h.Total)
	}
	return "−" + humanfmt.Short(h.Total-h.Driver)
}

// addSaid adds the refusals and the deaths as sentences.
func (h *hub) addSaid(v *jobView, j *machine.Job) {
	for _, f := range machine.GroupRefusals(j.Refusals) {
		if len(v.Refusals) == maxRefusals {
			break
		}
		row := saidRow{Text: sentence(f.Sentence(j.Processes)), Times: f.Times}
		row.Clock, row.When = clock(f.Time)
		v.Refusals = append(v.Refusals, row)
	}
	for i := range j.Deaths[:min(len(j.Deaths), maxDeaths)] {
		row := saidRow{Text: sentence(j.Deaths[i].Sentence()), Times: 1}
		row.Clock, row.When = clock(j.Deaths[i].Time)
		v.Deaths = append(v.Deaths, row)
	}
}
