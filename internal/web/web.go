// Package web is the page of a machine, for a browser: its devices with the jobs in them, the last
// 15 minutes, jobs with their processes, what was refused, and what an operator should know.
//
// It is drawn here, as HTML and SVG, and not in the browser. The page is made of fragments, each
// an element with an id. When the machine changes, the fragments that are others than before are
// sent over one stream (server-sent events), and a script puts each in the place of the old one.
// So what is shown is said once, in the templates; it works, without updates, where scripts are
// off; and every string of a tenant's goes through html/template.
//
//	Source ──▶ hub: view, fragments, each with the version that changed it
//	            ├── GET /        the whole page, of version v
//	            └── GET stream   the fragments that changed after v, and so on
//
// A client has no state here but the version it has seen, so any number of them costs one
// rendering, and one that comes back after a while gets what it missed.
package web

import (
	"crypto/rand"
	"embed"
	"encoding/hex"
	"html/template"
	"net/http"
	"os"
	"sync"

	"ration/internal/limit"
	"ration/internal/node"
	"ration/machine"
)

// Source is where the machine comes from.
type Source interface {
	// Latest returns the machine and the latest events as the viewer may see them, and a channel that is
	// closed when there is something new. Nothing changes either of the two.
	Latest() (*machine.Machine, []machine.Event, <-chan struct{})
	// History returns the last minutes. It is asked once, for the time before the page was opened.
	History() (node.History, error)
}

// Options say what a page shows, and to whom.
type Options struct {
	Source  Source
	Public  bool   // it is for everybody: devices and totals only, and no token is asked for
	Version string // of ration
	Host    string // name of the machine; empty for its own
	Viewer  string // whose jobs are shown; empty for those of all users
	Token   string // that the first request must carry; not empty unless Public
	ID      string // folder of the page, which is another one each time; empty if Public

	MaxStreams int  // pages that stay connected at once
	AnyHost    bool // do not check the Host header: the operator has published the port

	// MayChange reports whether the viewer may change a job's limits. SetLimit changes them, and
	// returns what ration limit would print. Both are nil where no viewer may.
	MayChange func(j *machine.Job) bool
	SetLimit  func(j machine.Job, change limit.Limits) (string, error)
	// Note says where the machine comes from, if that is worth a word; nil for none.
	Note func() string

	form string // that forms of the page carry
}

//go:embed files
var files embed.FS

// templates are parsed when the first page is drawn: every command would pay for it.
var templates = sync.OnceValue(func() *template.Template { return template.Must(template.New("").ParseFS(files, "files/*.html")) })

// Secret returns a random text that nobody can guess.
func Secret() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// New returns the page's handler.
func New(opts Options) http.Handler {
	opts.form = Secret()
	s := &server{opts: opts, hub: newHub(opts), prefix: "/"}
	if opts.ID != "" {
		s.prefix = "/" + opts.ID + "/"
	}
	s.streams = make(chan struct{}, max(1, opts.MaxStreams))
	return s.routes()
}

// hostName is the machine's.
func hostName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "this machine"
	}
	return name
}
