package agent

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"ration/internal/proc"
	"ration/internal/web"
	"ration/machine"
)

// remoteGap is the shortest time between two lines to a reader on another machine, which may read a
// thousand of these streams. Tests set it.
var remoteGap = 5 * time.Second

// Remote sends a machine to readers on other machines, in the format of the agent's /v1/watch and in brief: what
// ration web --fleet shows.
type Remote struct {
	source  web.Source
	version string

	mu  sync.Mutex
	now *snapshot        // guarded by mu
	of  *machine.Machine // guarded by mu: the machine that now is of
}

// NewRemote returns a Remote of a machine.
func NewRemote(source web.Source, version string) *Remote {
	return &Remote{source: source, version: version, now: &snapshot{}}
}

// ServeHTTP answers a reader. The caller has checked that it may read.
func (s *Remote) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(headerVersion, s.version)
	serial := uint64(0)
	var last *delta // without its jobs
	changes := func() <-chan struct{} { _, _, next := s.source.Latest(); return next }
	streamLines(changes, rate.NewLimiter(rate.Every(remoteGap), 1), remoteGap, w, r, false, func() error {
		now := s.latest()
		d := now.since(serial, peer{all: true})
		serial = now.last
		for i := range d.Jobs { // since has copied them
			d.Jobs[i].Path, d.Jobs[i].Created = "", time.Time{}
		}
		if last != nil && len(d.Jobs) == 0 && reflect.DeepEqual(&d, last) {
			_, err := w.Write([]byte("\n")) // a sign of life
			return err
		}
		if err := json.NewEncoder(w).Encode(&d); err != nil {
			return err
		}
		d.Jobs = []machine.Job{}
		last = &d
		return nil
	})
}

// latest returns the machine in brief. All readers share the serials of its jobs.
func (s *Remote) latest() *snapshot {
	m, _, _ := s.source.Latest()
	s.mu.Lock()
	defer s.mu.Unlock()
	if m != s.of {
		s.now, s.of = newSnapshot(brief(m), s.now), m
	}
	return s.now
}

// brief returns the part of a machine that a fleet shows: its devices, its findings, and which user
// holds how much of them. It has no name, path, command or process of a job. Users to which UIDs are
// delegated stand for these, as on the page.
func brief(m *machine.Machine) machine.Machine {
	accounts := map[int]string{}
	userOf := func(owner string, uid int) string {
		account, known := accounts[uid]
		if !known {
			account, _ = proc.SubUIDOwner(uid)
			accounts[uid] = account
		}
		if account != "" {
			return account
		}
		return owner
	}
	out := machine.Machine{Devices: slices.Clone(m.Devices), Jobs: []machine.Job{}, Outside: []machine.Outside{}, Findings: []machine.Finding{}}
	for i := range out.Devices { // without the values that change all the time
		g := &out.Devices[i]
		g.Temperature, g.Power, g.Utilization = nil, nil, nil
	}
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if j.State == machine.Ended {
			continue
		}
		// The path stays until the serials are known, and is not sent: it tells jobs apart.
		b := machine.Job{Path: j.Path, Created: j.Created, Owner: userOf(j.Owner, j.UID), UID: j.UID, State: j.State, Sleep: j.Sleep}
		for n := range j.Devices {
			d := &j.Devices[n]
			b.Devices = append(b.Devices, machine.Device{Device: d.Device, UUID: d.UUID, Limited: d.Limited, Limit: d.Limit, Used: d.Used})
		}
		out.Jobs = append(out.Jobs, b)
	}
	for _, o := range m.Outside {
		out.Outside = append(out.Outside, machine.Outside{Device: o.Device, UID: o.UID, User: userOf(o.User, o.UID), Used: o.Used})
	}
	for _, f := range m.Findings {
		out.Findings = append(out.Findings, machine.Finding{Kind: f.Kind, Device: f.Device, Text: f.Text, Remedy: f.Remedy})
	}
	return out
}
