package web

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"ration/internal/humanfmt"
	"ration/internal/proc"
	"ration/internal/termtext"
	"ration/machine"
)

// shownUsers is how many users the legend shows at once; the others are below a heading that opens.
const shownUsers = 12

// maxListedJobs bounds the jobs that are listed for a user of a device.
const maxListedJobs = 8

// subUIDOwner is a variable for tests.
var subUIDOwner = proc.SubUIDOwner

// userOf returns the name of the user that a job's memory is shown for. All UIDs that are delegated
// to a user in /etc/subuid are that user: otherwise one user could take every colour. The names are
// cached for one drawing.
func (h *hub) userOf(owner string, uid int) string {
	account, known := h.delegates[uid]
	if !known {
		account, _ = subUIDOwner(uid)
		h.delegates[uid] = account
	}
	return cmp.Or(termtext.Printable(cmp.Or(account, owner)), "?")
}

// holderOf returns the name that has a job's memory on the page: its user or, on a user's own page,
// the job.
func (h *hub) holderOf(owner string, uid int, name, path string) string {
	if h.opts.Viewer != "" {
		return termtext.Printable(cmp.Or(name, path))
	}
	return h.userOf(owner, uid)
}

func (h *hub) holder(j *machine.Job) string { return h.holderOf(j.Owner, j.UID, j.Name, j.Path) }

// share is what one user (or job) has of one device, or of all.
type share struct {
	name           string
	used, limit    uint64
	outside        uint64 // held outside of jobs; not part of used
	limits, others int    // jobs with a limit, and without one
	asleep         bool   // a job sleeps, so that its limit is not handed out
	jobs           []jobPart
	devices        []int
}

// jobPart is a job's part of a share.
type jobPart struct {
	Title, Href string
	bytes       uint64
}

// Bytes returns the size for the legend.
func (p jobPart) Bytes() string { return humanfmt.Bytes(p.bytes) }

// holdings are the memory and the jobs of each user.
type holdings struct {
	devices map[int]map[string]*share // by the device's number, and by name
	all     map[string]*share
	jobs    map[string]int // number of jobs by name
}

// besidePolicy is a variable for tests.
var besidePolicy = machine.BesidePolicy

// holdingsOf adds up what each user (or job) has of each device.
func (h *hub) holdingsOf(m *machine.Machine) *holdings {
	u := &holdings{map[int]map[string]*share{}, map[string]*share{}, map[string]int{}}
	beside := besidePolicy()
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.State == machine.Ended {
			continue
		}
		name := h.holder(j)
		u.jobs[name]++
		u.total(name)
		for n := range j.Devices {
			d := &j.Devices[n]
			at := m.DeviceOf(d)
			if at >= 0 && j.LeavesRoom() {
				u.total(name).asleep = true
				continue
			}
			counts := d.Limited && !beside(j)
			if at < 0 || d.Used == 0 && (!counts || d.Limit == 0) { // without a limit, or with one of nothing, a job has only what it holds
				continue
			}
			on, all := u.on(m.Devices[at].Device, name), u.total(name)
			if d.Used > 0 {
				on.jobs = append(on.jobs, jobPart{jobName(j), "#" + elementID(j.ID()), d.Used})
			}
			for _, s := range []*share{on, all} {
				s.used += min(d.Used, ^s.used)
				if counts {
					s.limit += min(d.Limit, ^s.limit)
					s.limits++
				} else {
					s.others++
				}
			}
		}
	}
	for _, o := range m.Outside {
		name := h.userOf(o.User, o.UID)
		if h.opts.Viewer != "" {
			name = "in no job"
		}
		on, all := u.on(o.Device, name), u.total(name)
		on.outside += min(o.Used, ^on.outside)
		all.outside += min(o.Used, ^all.outside)
	}
	return u
}

func (u *holdings) total(name string) *share {
	s := u.all[name]
	if s == nil {
		s = &share{name: name}
		u.all[name] = s
	}
	return s
}

func (u *holdings) on(device int, name string) *share {
	of := u.devices[device]
	if of == nil {
		of = map[string]*share{}
		u.devices[device] = of
	}
	s := of[name]
	if s == nil {
		s = &share{name: name}
		of[name] = s
		all := u.total(name)
		all.devices = append(all.devices, device)
	}
	return s
}

// held returns the bytes that decide who gets a colour.
func (u *holdings) held() map[string]uint64 {
	out := map[string]uint64{}
	for name, s := range u.all {
		if u.jobs[name] > 0 {
			out[name] = s.used
		}
	}
	return out
}

// jobName returns a job's name without the name of its user, which is shown beside it.
func jobName(j *machine.Job) string {
	return termtext.Printable(strings.TrimPrefix(j.Title(), j.Owner+"/"))
}

// userView is a line of the legend.
type userView struct {
	Name, Class, Pattern string
	Used, Of             string
	GPUs                 string
	Summary              string // in words, for screen readers
}

// usersView is the legend of the colours.
type usersView struct {
	Users, More []userView
	MoreUsed    string     // what those in More have
	Rest        []userView // memory of no user
	ByJob       bool
	Hidden      bool
}

// users returns the legend: what each user has on all devices. Sizes are compared by powers of two,
// so that two users of about the same size do not swap places all the time.
func (h *hub) users(m *machine.Machine, u *holdings) usersView {
	v := usersView{ByJob: h.opts.Viewer != "", Hidden: h.opts.Public || len(u.all) == 0}
	if v.Hidden {
		return v
	}
	var all []*share
	var sum, more uint64
	for _, s := range u.all {
		all = append(all, s)
		sum += min(s.used+s.outside, ^sum)
	}
	slices.SortFunc(all, func(a, b *share) int {
		return cmp.Or(cmp.Compare(bits.Len64(b.used+b.outside), bits.Len64(a.used+a.outside)), strings.Compare(a.name, b.name))
	})
	for i, s := range all {
		line := h.userLine(m, u, s)
		if i < shownUsers || len(all) <= shownUsers+2 {
			v.Users = append(v.Users, line)
		} else if more += min(s.used+s.outside, ^more); i < maxJobs {
			v.More = append(v.More, line)
		}
	}
	v.MoreUsed = humanfmt.Bytes(more)
	var used, total uint64
	for _, g := range m.Devices {
		used, total = used+g.Used, total+g.Total
	}
	if used > sum {
		v.Rest = append(v.Rest, userView{Name: h.restLabel(), Class: "rest", Used: humanfmt.Bytes(used - sum)})
	}
	if total > max(used, sum) {
		v.Rest = append(v.Rest, userView{Name: "free", Class: "free", Used: humanfmt.Bytes(total - max(used, sum))})
	}
	return v
}

func (h *hub) userLine(m *machine.Machine, u *holdings, s *share) userView {
	st := h.colours.style(s.name)
	v := userView{Name: s.name, Class: st.Class(), Pattern: st.Pattern(), Used: humanfmt.Bytes(s.used + s.outside), GPUs: deviceNumbers(s.devices, len(m.Devices))}
	switch {
	case u.jobs[s.name] == 0:
		v.Class, v.Of = "outside", "in no job"
		if s.name == v.Of {
			v.Of = ""
		}
	case s.others > 0:
		v.Of = "no limit"
	case s.limits > 0:
		v.Of = "of " + humanfmt.Bytes(s.limit)
	case s.asleep:
		v.Of = "asleep"
	}
	v.Summary = fmt.Sprintf("%s: %s %s", s.name, v.Used, v.Of)
	if v.GPUs != "" {
		v.Summary += " on " + v.GPUs
	}
	if n := u.jobs[s.name]; n > 0 && h.opts.Viewer == "" {
		v.Summary += ", " + plural(n, "job", "jobs")
	}
	return v
}

// deviceNumbers names devices by their numbers, as in GPU 0–3, 7.
func deviceNumbers(devices []int, count int) string {
	devices = slices.Clone(devices)
	slices.Sort(devices)
	switch {
	case len(devices) == 0, count == 1:
		return ""
	case len(devices) == count && count > 2:
		return "all GPUs"
	}
	return "GPU " + humanfmt.Ranges(devices, ", ", "–")
}
