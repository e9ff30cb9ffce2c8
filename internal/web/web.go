// Package web serves a page about a machine: what each user holds of its devices, the last 15
// minutes, jobs with their processes, refused requests, and findings for the operator.
//
// The server renders the page as HTML and SVG. The page consists of fragments; each is an element
// with an id. When the machine changes, the server sends the changed fragments over one stream
// (server-sent events), and a script replaces the old elements. So only the templates decide what
// is shown, the page works without updates if scripts are off, and every string of a tenant passes
// through html/template.
//
//	Source ──▶ hub: view, fragments, each with the version that changed it
//	            ├── GET /        the whole page, of version v
//	            └── GET stream   the fragments that changed after v, and so on
//
// The server keeps no state of a client except the version that the client has. So any number of
// clients cost one rendering, and a client that connects again gets what it has missed.
package web

import (
	"crypto/rand"
	"embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"os"
	"sync"
	"time"

	"ration/internal/connlimit"
	"ration/internal/limit"
	"ration/internal/node"
	"ration/internal/usage"
	"ration/machine"
)

// Source provides the machine.
type Source interface {
	// Latest returns the machine and the latest events, as far as the viewer may see them, and a
	// channel that is closed when either changes. Neither is modified later.
	Latest() (*machine.Machine, []machine.Event, <-chan struct{})
	// History returns the history of the last minutes. It is called once, for the time before the
	// page was opened.
	History() (node.History, error)
}

// Options are the settings of a page.
type Options struct {
	Source  Source
	Public  bool   // for every user: shows only devices and totals, and needs no token
	Version string // version of ration
	Host    string // name of the machine; empty to use the host name
	Viewer  string // user whose jobs are shown; empty for all users
	Token   string // the first request must carry it; not empty unless Public
	ID      string // random path of the page; empty if Public

	MaxStreams int  // bound on connected pages
	AnyHost    bool // do not check the Host header: the operator has published the port
	TLS        bool // the connections are encrypted

	// Watch answers v1/watch, for the page of a fleet on another machine; nil for none.
	Watch http.HandlerFunc

	// MayChange reports whether the viewer may change a job's limits. SetLimit changes them, and
	// returns the output of ration limit. Both are nil if no viewer may change limits.
	MayChange func(j *machine.Job) bool
	SetLimit  func(j machine.Job, change limit.Limits) (string, error)
	// Usage returns a report of the viewer's accounts, with a plot if that is wanted; nil if none are shown.
	Usage func(from, to time.Time, plot bool) (usage.Report, error)
	// Note returns a remark on where the data comes from; nil for none.
	Note func() string

	form string // secret that forms of the page carry
}

//go:embed files
var files embed.FS

// templates are parsed when the first page is drawn, so that other commands do not pay for it.
var templates = sync.OnceValue(func() *template.Template { return template.Must(template.New("").ParseFS(files, "files/*.html")) })

// Secret returns a random text that cannot be guessed.
func Secret() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// New returns the handler of a page.
func New(opts Options) http.Handler {
	opts.form = Secret()
	h := newHub(opts)
	s := &server{opts: opts, board: h.board, hub: h, prefix: prefixOf(opts.ID), streams: connlimit.NewStreams(max(1, opts.MaxStreams))}
	return s.routes()
}

// prefixOf returns the prefix of a page's paths.
func prefixOf(id string) string {
	if id == "" {
		return "/"
	}
	return "/" + id + "/"
}

// hostName returns the name of the machine.
func hostName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "this machine"
	}
	return name
}
