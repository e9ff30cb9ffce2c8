package web

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"ration/internal/fleet"
	"ration/internal/humanfmt"
)

// The GPUs of a machine are one drawing, of this many units. The patterns of colours are made for a unit of
// about five pixels across and an eighth of one upwards, as in the charts.
const (
	gpusWidth  = 64
	gpusHeight = 112
	gpuGap     = 1.0
)

// machineView is a machine for the template.
type machineView struct {
	ID, Name, URL string
	Class         string // down, bad, warned, or empty
	Used, Total   string
	Users         string
	Tracks        string // the GPUs, as a path
	Parts         []userPath
	Summary       string // the GPUs in words, for screen readers
	Trouble       string
	Since         string // since when it does not answer
	More          int
	Search        string
	Unknown       bool // it has never answered
}

// userPath is what a user holds of all GPUs of a machine, as a path.
type userPath struct{ Name, Class, Pattern, Path string }

// machineID returns the id of a machine's element.
func machineID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("machine-%x", sum[:8])
}

func (h *fleetHub) machine(m *fleet.Machine) machineView {
	v := machineView{ID: machineID(m.Name), Name: m.Name, URL: m.URL, Unknown: m.Seen.IsZero()}
	var used, total uint64
	words := []string{m.Name}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		used, total = used+g.Used, total+g.Total
		v.Summary += fmt.Sprintf("GPU %d: %s of %s. ", g.Device, humanfmt.Bytes(g.Used), humanfmt.Bytes(g.Total))
	}
	v.Used, v.Total = humanfmt.Short(used), humanfmt.Short(total)
	if v.Summary = strings.TrimSpace(v.Summary); v.Summary == "" {
		v.Summary = "no GPU is known"
	}
	names := make([]string, len(m.Users))
	for i := range m.Users {
		names[i] = m.Users[i].Name
	}
	v.Users = strings.Join(names[:min(len(names), maxListedJobs)], ", ")
	v.Tracks, v.Parts = h.paths(m)
	switch {
	case m.State == fleet.Unreachable:
		v.Class, v.Trouble, v.Since = "down", m.Reason, m.Since.UTC().Format(time.RFC3339)
		words = append(words, m.State)
	case len(m.Problems) > 0:
		v.Class = "warned"
		if fleet.Urgency(m) > fleet.Urgent {
			v.Class = "bad"
		}
		v.Trouble, v.More = m.Problems[0].Text, len(m.Problems)-1+m.More
	}
	for _, p := range m.Problems {
		words = append(words, p.Kind)
	}
	v.Search = strings.ToLower(strings.Join(append(append(words, names...), v.Trouble), " "))
	return v
}

// paths draws the GPUs side by side: a track for each, and in it what each user holds, what is held in no job, and
// what is counted for nobody.
func (h *fleetHub) paths(m *fleet.Machine) (tracks string, parts []userPath) {
	const outside, rest = 1 << 20, 1 << 21 // after all styles; grey is before outside
	byKey := map[string]*userPath{}
	order := map[string]int{}
	slot := float64(gpusWidth) / float64(max(1, len(m.GPUs)))
	width := slot - math.Min(gpuGap, slot/4)
	var path []byte
	for i := range m.GPUs {
		g := &m.GPUs[i]
		left := slot * float64(i)
		path = box(path, left, width)
		size := max(g.Total, 1)
		at := uint64(0)
		put := func(key string, rank int, p userPath, bytes uint64) {
			from, to := float64(at)/float64(size), float64(at+bytes)/float64(size)
			if at += bytes; to-from < 0.005 { // less than a pixel
				return
			}
			if byKey[key] == nil {
				byKey[key], order[key] = &p, rank
			}
			byKey[key].Path = string(box([]byte(byKey[key].Path), left+width*from, width*(to-from)))
		}
		users := slices.Clone(g.Users)
		slices.SortStableFunc(users, func(a, b fleet.User) int { return h.rank(a.Name) - h.rank(b.Name) })
		var none uint64
		for _, u := range users {
			s := h.colours.style(u.Name)
			put("user "+u.Name, h.rank(u.Name), userPath{Name: u.Name, Class: s.Class(), Pattern: s.Pattern()}, u.Used)
			none += u.Outside
		}
		put("outside", outside, userPath{Class: "outside"}, none)
		put("rest", rest, userPath{Class: "rest"}, g.Used-min(g.Used, at))
	}
	keys := make([]string, 0, len(byKey))
	for key := range byKey {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int { return cmp.Or(order[a]-order[b], strings.Compare(a, b)) })
	for _, key := range keys {
		parts = append(parts, *byKey[key])
	}
	return string(path), parts
}

// rank orders the users in a bar by their styles; those without a colour come last.
func (h *fleetHub) rank(name string) int {
	if s := h.colours.style(name); s != grey {
		return int(s)
	}
	return styleCount
}

// box appends a rectangle as high as the drawing to a path.
func box(path []byte, x, width float64) []byte {
	number := func(v float64) { path = strconv.AppendFloat(path, math.Round(v*10)/10, 'f', -1, 64) }
	path = append(path, 'M')
	number(x)
	path = append(path, " 0V"...)
	path = strconv.AppendInt(path, gpusHeight, 10)
	path = append(path, 'H')
	number(x + width)
	return append(path, "V0z"...)
}

// fleetUser is what a user holds on all machines that answer.
type fleetUser struct {
	used, limit, outside uint64
}

// fleetUsers are the users of all machines that answer. A name counts once for each machine: so a machine that
// lies cannot take the colours of users whom others name too.
type fleetUsers struct {
	of       map[string]*fleetUser
	machines map[string]uint64
}

func addUsers(state *fleet.State) *fleetUsers {
	all := &fleetUsers{map[string]*fleetUser{}, map[string]uint64{}}
	for _, m := range state.Machines {
		if m.State != fleet.Up {
			continue
		}
		for i := range m.Users {
			u := &m.Users[i]
			sum := all.of[u.Name]
			if sum == nil {
				sum = &fleetUser{}
				all.of[u.Name] = sum
			}
			sum.used, sum.limit, sum.outside = sum.used+u.Used, sum.limit+u.Limit, sum.outside+u.Outside
			all.machines[u.Name]++
		}
	}
	return all
}

// fleetUsers returns the legend: users with a colour first. Sizes are compared by powers of two, so that users do not
// swap places all the time.
func (h *fleetHub) fleetUsers(all *fleetUsers) usersView {
	v := usersView{Hidden: len(all.of) == 0}
	names := make([]string, 0, len(all.of))
	for name := range all.of {
		names = append(names, name)
	}
	held := func(name string) uint64 { return all.of[name].used + all.of[name].outside }
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(h.grey(a)-h.grey(b), bits.Len64(held(b))-bits.Len64(held(a)), strings.Compare(a, b))
	})
	more := uint64(0)
	for i, name := range names {
		u, st := all.of[name], h.colours.style(name)
		line := userView{Name: name, Class: st.Class(), Pattern: st.Pattern(), Used: humanfmt.Bytes(held(name)), Of: "of " + humanfmt.Bytes(u.limit), GPUs: humanfmt.Plural(int(all.machines[name]), "machine", "machines")}
		if u.limit == 0 {
			line.Of = ""
		}
		line.Summary = fmt.Sprintf("%s: %s %s on %s", name, line.Used, line.Of, line.GPUs)
		if i < shownUsers || len(names) <= shownUsers+2 {
			v.Users = append(v.Users, line)
		} else if more += held(name); i < maxJobs {
			v.More = append(v.More, line)
		}
	}
	v.MoreUsed = humanfmt.Bytes(more)
	return v
}

// grey returns 1 for a user without a colour, and otherwise 0.
func (h *fleetHub) grey(name string) int {
	if h.colours.style(name) == grey {
		return 1
	}
	return 0
}

// fleetTop counts the machines.
func fleetTop(state *fleet.State, users *fleetUsers) topView {
	var down, troubled, gpus int
	var used, total uint64
	for _, m := range state.Machines {
		switch {
		case m.State == fleet.Unreachable:
			down++
		case len(m.Problems) > 0:
			troubled++
		}
		if m.State != fleet.Up {
			continue
		}
		gpus += len(m.GPUs)
		for i := range m.GPUs {
			used, total = used+m.GPUs[i].Used, total+m.GPUs[i].Total
		}
	}
	return topView{Figures: []figure{{humanfmt.Count(len(state.Machines)), "machines"}, {humanfmt.Count(down), "unreachable"}, {humanfmt.Count(troubled), "with findings"},
		{humanfmt.Count(gpus), "GPUs"}, {humanfmt.Bytes(used), "of " + humanfmt.Bytes(total) + " used"}, {humanfmt.Count(len(users.of)), "users"}}}
}
