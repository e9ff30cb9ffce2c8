package web

import (
	"context"
	"encoding/json"
	"html/template"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"ration/internal/connlimit"
	"ration/internal/fleet"
)

// FleetSource provides the machines of a fleet.
type FleetSource interface {
	// Latest returns the machines, and a channel that is closed at the next change. Neither is modified later.
	Latest() (*fleet.State, <-chan struct{})
}

// fleetDrawTime is the shortest time between two drawings: a thousand machines change all the time.
const fleetDrawTime = time.Second

// fleetHub draws the machines of a fleet when they change, once for all viewers. It draws only machines that
// would look different.
type fleetHub struct {
	*board
	source FleetSource

	draw    sync.Mutex // held while it draws; guards the fields below
	fresh   <-chan struct{}
	colours *colours
	drawn   map[string]drawnMachine // by name
}

// drawnMachine is a machine as of the last time that it was looked at.
type drawnMachine struct {
	machine *fleet.Machine
	styles  []style // of its users
	view    machineView
}

// NewFleet returns the handler of a page about many machines. Of the options it uses Version, Host, Token, ID,
// MaxStreams, AnyHost and TLS.
func NewFleet(source FleetSource, opts Options) http.Handler {
	h := &fleetHub{source: source, colours: newColours(), drawn: map[string]drawnMachine{}}
	h.board = newBoard(h.follow)
	s := &server{opts: opts, board: h.board, fleet: h, prefix: prefixOf(opts.ID), streams: connlimit.NewStreams(max(1, opts.MaxStreams))}
	mux := http.NewServeMux()
	mux.Handle("GET "+s.prefix+"{$}", s.allowed(s.serveFleet))
	mux.Handle("GET "+s.prefix+"stream", s.allowed(s.stream(s.serveStream)))
	mux.Handle("GET "+s.prefix+"v1/fleet", s.allowed(func(w http.ResponseWriter, _ *http.Request) {
		state, _ := source.Latest()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(state) // fails if the client has disconnected
	}))
	s.addFiles(mux)
	return s.guarded(mux)
}

func (h *fleetHub) follow(ctx context.Context) {
	draws := rate.NewLimiter(rate.Every(fleetDrawTime), 1)
	for draws.Wait(ctx) == nil {
		select {
		case <-ctx.Done():
			return
		case <-h.refresh():
		}
	}
}

// refresh draws the machines that have changed, and returns a channel that is closed at the next change.
func (h *fleetHub) refresh() <-chan struct{} {
	h.draw.Lock()
	defer h.draw.Unlock()
	if h.fresh != nil {
		select {
		case <-h.fresh:
		default:
			return h.fresh
		}
	}
	var state *fleet.State
	state, h.fresh = h.source.Latest()
	users := addUsers(state)
	h.colours.assign(users.machines)
	fragments := map[string]string{"top": render("top", fleetTop(state, users)), "users": render("users", h.fleetUsers(users)),
		"notes": render("fleet-notes", state.Notes), "no-machines": render("no-machines", len(state.Machines) == 0)}
	drawn := make(map[string]drawnMachine, len(state.Machines))
	order := state.ByUrgency()
	ids := make([]string, len(order))
	for i, m := range order {
		d, was := h.drawn[m.Name]
		styles := h.stylesOf(m)
		if !was || d.machine != m || !slices.Equal(d.styles, styles) {
			view := h.machine(m)
			if !was || !reflect.DeepEqual(view, d.view) {
				fragments[view.ID] = render("machine", view)
			}
			d = drawnMachine{m, styles, view}
		}
		drawn[m.Name], ids[i] = d, d.view.ID
	}
	h.drawn = drawn
	h.publish(fragments, map[string][]string{"machines": ids})
	return h.fresh
}

func (h *fleetHub) stylesOf(m *fleet.Machine) []style {
	out := make([]style, len(m.Users))
	for i := range m.Users {
		out[i] = h.colours.style(m.Users[i].Name)
	}
	return out
}

// fleetView is the data of the page around the fragments.
type fleetView struct {
	Version, At, Theme            string
	Top, Users, Notes, NoMachines template.HTML
	Machines                      []template.HTML
}

func (s *server) serveFleet(w http.ResponseWriter, r *http.Request) {
	s.fleet.refresh()
	fragments, lists, version := s.board.all()
	html := func(id string) template.HTML { return template.HTML(fragments[id]) } // each was written by a template
	v := fleetView{Version: s.opts.Version, At: s.board.feed.Token(version), Theme: themeOf(r), Top: html("top"), Users: html("users"), Notes: html("notes"), NoMachines: html("no-machines")}
	for _, id := range lists["machines"] {
		v.Machines = append(v.Machines, html(id))
	}
	s.writeTemplate(w, r, "fleet", v, http.StatusOK)
}
