package fleet

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"ration/internal/termtext"
	"ration/machine"
)

// These bound what is kept of a machine.
const (
	maxGPUs     = 64
	maxJobs     = 4096
	maxUsers    = 256   // of a machine; what others hold is one user
	maxHeld     = 16384 // GPUs of all jobs together
	maxOutside  = 4096  // processes of no job
	maxUUID     = 96
	maxMemory   = 4 << 40 // bytes of one GPU
	maxProblems = 8
	maxName     = 64
	maxText     = 240
	others      = "(others)"
)

// jobs are a machine's jobs by their serials.
type jobs map[uint64]job

// job is what is read of a job.
type job struct {
	Owner   string `json:"owner"`
	Devices []struct {
		Device  int    `json:"device"`
		UUID    string `json:"uuid"`
		Limited bool   `json:"limited"`
		Limit   uint64 `json:"limit"`
		Used    uint64 `json:"used"`
	} `json:"devices"`
}

// message is what is read of a line of /v1/watch.
type message struct {
	Devices []struct {
		Device  int    `json:"device"`
		UUID    string `json:"uuid"`
		Name    string `json:"name"`
		Total   uint64 `json:"total"`
		Used    uint64 `json:"used"`
		Rations uint64 `json:"rations"`
	} `json:"devices"`
	Jobs    []job    `json:"jobs"`
	Serials []uint64 `json:"serials"`
	Outside []struct {
		Device int    `json:"device"`
		User   string `json:"user"`
		Used   uint64 `json:"used"`
	} `json:"outside"`
	Findings []struct {
		Kind   string `json:"kind"`
		Device int    `json:"device"`
		Text   string `json:"text"`
	} `json:"findings"`
}

// summary is what is kept of a line.
type summary struct {
	gpus     []GPU
	users    []User
	problems []Problem
	more     int
	jobs     int
}

// into makes the summary the machine's.
func (s *summary) into(m *Machine, version string, at time.Time) {
	if m.State != Up {
		m.State, m.Since, m.Reason = Up, at, ""
	}
	m.Seen, m.Version, m.GPUs, m.Users, m.Problems, m.More, m.Jobs = at, version, s.gpus, s.users, s.problems, s.more, s.jobs
}

// summarise decodes a line, and keeps its jobs for the next one.
func summarise(line []byte, have *jobs) (*summary, error) {
	var d message
	if err := json.Unmarshal(line, &d); err != nil {
		return nil, errors.New("what it sends is not the JSON of a machine")
	}
	if len(d.Devices) > maxGPUs || len(d.Serials) > maxJobs || len(d.Outside) > maxOutside {
		return nil, fmt.Errorf("it says that it has %d GPUs, %d jobs and %d processes of no job, more than are read (%d, %d and %d)",
			len(d.Devices), len(d.Serials), len(d.Outside), maxGPUs, maxJobs, maxOutside)
	}
	if err := d.shorten(); err != nil {
		return nil, err
	}
	all, next, ok := Merge(*have, d.Serials, d.Jobs)
	if !ok {
		return nil, fmt.Errorf("it contradicts itself: %d jobs are new, of %d", len(d.Jobs), len(d.Serials))
	}
	s := &summary{gpus: make([]GPU, len(d.Devices)), jobs: len(all)}
	users := &holdings{on: make([]map[string]*User, len(d.Devices)), all: map[string]*User{}}
	byUUID, byNumber := map[string]int{}, map[int]int{}
	for i, g := range d.Devices {
		if g.Total > maxMemory {
			return nil, fmt.Errorf("it says that GPU %d has %d TiB", g.Device, g.Total>>40)
		}
		s.gpus[i] = GPU{Device: g.Device, Name: clean(g.Name, maxName), Total: g.Total, Used: min(g.Used, g.Total), Rations: g.Rations, Users: []User{}}
		byUUID[g.UUID], byNumber[g.Device] = i, i
	}
	count := 0
	for n := range all {
		owner := all[n].Owner
		if count += len(all[n].Devices); count > maxHeld {
			return nil, fmt.Errorf("it says that its jobs have more than %d GPUs together", maxHeld)
		}
		for _, held := range all[n].Devices {
			at, known := byUUID[held.UUID]
			if held.UUID == "" {
				at, known = byNumber[held.Device]
			}
			if known && (held.Used > 0 || held.Limited && held.Limit > 0) {
				users.add(at, owner, held.Used, held.Limit, 0)
			}
		}
	}
	for _, o := range d.Outside {
		if at, known := byNumber[o.Device]; known && o.Used > 0 {
			users.add(at, clean(o.User, maxName), 0, 0, o.Used)
		}
	}
	for i := range s.gpus {
		s.gpus[i].Users = sorted(users.on[i])
		bound(&s.gpus[i])
	}
	s.users = total(s.gpus)
	for _, f := range d.Findings {
		s.problems = append(s.problems, Problem{clean(f.Kind, maxName), f.Device, clean(f.Text, maxText)})
	}
	slices.SortStableFunc(s.problems, func(a, b Problem) int { return cmp.Compare(severity(b.Kind), severity(a.Kind)) })
	s.more = max(0, len(s.problems)-maxProblems)
	s.problems = slices.Clip(append([]Problem{}, s.problems[:len(s.problems)-s.more]...))
	*have = next
	return s, nil
}

// shorten bounds what is kept of the jobs of a message until they change.
func (d *message) shorten() error {
	for i := range d.Jobs {
		d.Jobs[i].Owner = clean(d.Jobs[i].Owner, maxName)
		for _, held := range d.Jobs[i].Devices {
			if len(held.UUID) > maxUUID {
				return fmt.Errorf("it sends a UUID of %d bytes", len(held.UUID))
			}
		}
	}
	return nil
}

// severity orders the kinds of findings: the highest first.
func severity(kind string) int {
	switch kind {
	case machine.DeviceFailed, machine.DriverSilent:
		return 3
	case machine.OverLimit:
		return 2
	}
	return 1
}

// holdings add up what each user has on each GPU.
type holdings struct {
	on  []map[string]*User
	all map[string]*User // by name, to bound their number
}

func (h *holdings) add(at int, name string, used, limit, outside uint64) {
	if name == "" {
		name = "?"
	}
	if h.all[name] == nil {
		if len(h.all) >= maxUsers {
			name = others
		}
		h.all[name] = &User{}
	}
	if h.on[at] == nil {
		h.on[at] = map[string]*User{}
	}
	u := h.on[at][name]
	if u == nil {
		u = &User{Name: name}
		h.on[at][name] = u
	}
	u.Used, u.Limit, u.Outside = plus(u.Used, used), plus(u.Limit, limit), plus(u.Outside, outside)
}

// plus adds, up to the largest number.
func plus(a, b uint64) uint64 { return a + min(b, ^a) }

func sorted(of map[string]*User) []User {
	out := make([]User, 0, len(of))
	for _, u := range of {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b User) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// bound cuts what users hold of a GPU to its size: no machine can say that users hold more than there is.
func bound(g *GPU) {
	left := g.Total
	for i := range g.Users {
		u := &g.Users[i]
		u.Used = min(u.Used, left)
		left -= u.Used
		u.Outside = min(u.Outside, left)
		left -= u.Outside
		u.Limit = min(u.Limit, maxMemory)
	}
	g.Rations = min(g.Rations, maxGPUs*maxMemory)
	g.Used = max(g.Used, g.Total-left)
}

// total adds up the users of all GPUs.
func total(gpus []GPU) []User {
	all := map[string]*User{}
	for i := range gpus {
		for _, u := range gpus[i].Users {
			if all[u.Name] == nil {
				all[u.Name] = &User{Name: u.Name}
			}
			t := all[u.Name]
			t.Used, t.Limit, t.Outside = plus(t.Used, u.Used), plus(t.Limit, u.Limit), plus(t.Outside, u.Outside)
		}
	}
	return sorted(all)
}

// clean returns a text of a machine as it may be shown: printable, and not long.
func clean(text string, most int) string {
	text = termtext.Printable(strings.TrimSpace(text))
	if len(text) <= most {
		return text
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}
