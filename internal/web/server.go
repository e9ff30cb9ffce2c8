package web

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"ration/internal/connlimit"
)

const (
	writeTimeout  = 10 * time.Second // for one part of a stream
	aliveInterval = 10 * time.Second // how often an idle stream sends a sign of life
	// streamTime is the maximum length of a stream. The browser then connects again, and gets only
	// what it has missed. So the server does not keep a client that has disappeared without closing
	// its connection.
	streamTime = 30 * time.Minute
	maxForm    = 4 << 10
	cookieName = "ration"
)

// policy lets the page load its own script and style and connect to its own server, and nothing
// else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

type server struct {
	opts    Options
	board   *board
	hub     *hub      // of the page of a machine
	fleet   *fleetHub // of the page of a fleet
	prefix  string    // prefix of all paths
	streams *connlimit.Streams
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+s.prefix+"{$}", s.allowed(s.servePage))
	mux.Handle("GET "+s.prefix+"stream", s.allowed(s.stream(s.serveStream)))
	if !s.opts.Public {
		mux.Handle("POST "+s.prefix+"limit", s.allowed(s.serveLimit))
	}
	if s.opts.Usage != nil {
		mux.Handle("GET "+s.prefix+"usage", s.allowed(s.serveUsage))
	}
	if s.opts.Watch != nil {
		mux.Handle("GET "+s.prefix+"v1/watch", s.allowed(s.stream(s.opts.Watch)))
	}
	s.addFiles(mux)
	return s.guarded(mux)
}

// addFiles serves the files that the page needs. They are no secret.
func (s *server) addFiles(mux *http.ServeMux) {
	for name, kind := range map[string]string{"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"} {
		text, err := files.ReadFile("files/" + name)
		if err != nil {
			panic(err) // cannot happen: the files are embedded
		}
		mux.HandleFunc("GET "+s.prefix+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", "no-cache")
			_, _ = w.Write(text)
		})
	}
}

// stream serves a request that stays connected. Its context ends if it has to make room for another client.
func (s *server) stream(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		evicted, leave, ok := s.streams.Enter(r)
		if !ok {
			w.Header().Set("Retry-After", "10")
			http.Error(w, "ration: too many pages are open", http.StatusServiceUnavailable)
			return
		}
		defer leave()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() {
			select {
			case <-evicted:
				cancel()
			case <-ctx.Done():
			}
		}()
		serve(w, r.WithContext(ctx))
	}
}

// guarded sets the headers of every answer. It refuses a request whose Host header is not a name of
// this machine. A page of another site that uses DNS rebinding to reach this server has its own
// name there.
func (s *server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer") // the address contains the token
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !s.opts.AnyHost && !isLocalName(r.Host):
			refuse(w, otherName)
		case !sameOrigin(r):
			refuse(w, "another site asks (open this page by its own address)")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

const otherName = "this page is not served under that name (use localhost)"

// LocalOnly returns a handler that refuses a request under a name that may be another host's.
func LocalOnly(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if isLocalName(r.Host) {
			next(w, r)
		} else {
			refuse(w, otherName)
		}
	}
}

func refuse(w http.ResponseWriter, text string) {
	http.Error(w, "ration: "+text, http.StatusForbidden)
}

// isLocalName reports whether a Host header is an IP address or localhost, because these cannot be
// redirected to another host. The port may differ, as with ssh -L.
func isLocalName(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// sameOrigin reports whether a request may come from the page itself. All browsers send the origin
// of a request that changes something; new browsers send it with every request.
func sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin != "" {
		u, err := url.Parse(origin)
		if err != nil || u.Host != r.Host || u.Scheme != "http" && u.Scheme != "https" {
			return false
		}
	} else if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	site := r.Header.Get("Sec-Fetch-Site")
	navigates := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate"
	return site == "" || site == "same-origin" || site == "none" || navigates // navigates: a link to the page
}

// allowed passes on requests that carry the token: in the address the first time, and in a cookie
// after that. The cookie is limited to the page's own path, whose name is secret. So other servers
// on this machine, on other ports, never receive it.
func (s *server) allowed(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.opts.Public {
			connlimit.Protect(r)
			next(w, r)
			return
		}
		given := r.URL.Query().Get("token")
		if given != "" && s.isToken(given) {
			connlimit.Protect(r)
			http.SetCookie(w, &http.Cookie{Name: cookieName, Value: s.opts.Token, Path: s.prefix, HttpOnly: true, Secure: s.opts.TLS, SameSite: http.SameSiteStrictMode})
			next(w, r)
			return
		}
		if c, err := r.Cookie(cookieName); err == nil && given == "" && s.isToken(c.Value) {
			connlimit.Protect(r)
			next(w, r)
			return
		}
		if bearer, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); is && given == "" && s.isToken(bearer) {
			connlimit.Protect(r)
			next(w, r)
			return
		}
		if s.opts.TLS && r.URL.Path == s.prefix { // the token is not part of the address that a person knows
			s.writeTemplate(w, r, "login", nil, http.StatusForbidden)
			return
		}
		refuse(w, "the token is missing or another one (open the address that ration web has printed)")
	})
}

func (s *server) isToken(text string) bool {
	return s.opts.Token != "" && subtle.ConstantTimeCompare([]byte(text), []byte(s.opts.Token)) == 1
}

// pageView is the data of the page around the fragments.
type pageView struct {
	Host, Viewer, Version, At string
	Public                    bool
	Theme                     string
	Top, Findings, NoDevices  template.HTML
	DevicesHead, Users        template.HTML
	Devices                   []template.HTML
	JobsHead, EndedHead       template.HTML
	Jobs, Ended               []template.HTML
	Waiting, Outside, Events  template.HTML
	Answer                    string // answer to a form
	Failed                    bool
	HasUsage                  bool
	UsageSpan                 string        // day, week, or empty
	Usage                     template.HTML // if there is a span
}

func (s *server) servePage(w http.ResponseWriter, r *http.Request) { s.writePage(w, r, "", false) }

func (s *server) writePage(w http.ResponseWriter, r *http.Request, answer string, failed bool) {
	s.hub.refresh()
	fragments, lists, version := s.hub.all()
	html := func(id string) template.HTML { return template.HTML(fragments[id]) } // each was written by a template
	v := pageView{Host: s.hub.host, Viewer: s.opts.Viewer, Version: s.opts.Version, At: s.board.feed.Token(version), Public: s.opts.Public, Answer: answer, Failed: failed,
		Top: html("top"), Findings: html("findings"), NoDevices: html("no-devices"), DevicesHead: html("devices-head"), Users: html("users"), JobsHead: html("jobs-head"), EndedHead: html("ended-head"), Waiting: html("waiting"), Outside: html("outside"), Events: html("events")}
	v.Theme = themeOf(r)
	if v.HasUsage = s.opts.Usage != nil; v.HasUsage && spans[r.URL.Query().Get("usage")] != 0 {
		v.UsageSpan, v.Usage = r.URL.Query().Get("usage"), s.drawUsage(r.URL.Query(), time.Now())
	}
	for _, id := range lists["devices"] {
		chart := "chart-" + strings.TrimPrefix(id, "gpu-")
		v.Devices = append(v.Devices, template.HTML(strings.Replace(fragments[id], render("no-chart", chart), fragments[chart], 1)))
	}
	for _, id := range lists["jobs"] {
		v.Jobs = append(v.Jobs, html(id))
	}
	for _, id := range lists["ended"] {
		v.Ended = append(v.Ended, html(id))
	}
	status := http.StatusOK
	if failed {
		status = http.StatusUnprocessableEntity
	}
	s.writeTemplate(w, r, "page", v, status)
}

// writeTemplate answers with a page.
func (s *server) writeTemplate(w http.ResponseWriter, r *http.Request, name string, data any, status int) {
	var out bytes.Buffer
	if err := templates().ExecuteTemplate(&out, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if s.opts.Public { // a client that does not read the page must not keep others out
		connlimit.Unprotect(r)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes())
}

// themeOf returns the theme that the address names, or "" for the system's.
func themeOf(r *http.Request) string {
	if theme := r.URL.Query().Get("theme"); theme == "dark" || theme == "light" {
		return theme
	}
	return ""
}

// serveStream sends changes as server-sent events. The id of an event is the version that the
// browser has then; the browser sends it when it connects again.
func (s *server) serveStream(w http.ResponseWriter, r *http.Request) {
	s.board.enter()
	defer s.board.leave()
	w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // the deadline was for the request, which has been read
	seen := r.Header.Get("Last-Event-ID")
	if seen == "" {
		seen = r.URL.Query().Get("since")
	}
	version := s.board.feed.Parse(seen)
	text := []byte("retry: 1000\n\n")
	end := time.NewTimer(streamTime)
	defer end.Stop()
	alive := time.NewTicker(aliveInterval)
	defer alive.Stop()
	for {
		var u update
		var next <-chan struct{}
		u, version, next = s.board.since(version)
		if len(u.Set)+len(u.Lists) > 0 {
			text = append(text, s.message(u, version)...)
		}
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write(text); err != nil || control.Flush() != nil {
			return
		}
		text = nil
		select {
		case <-next:
		case <-alive.C:
			text = []byte(":\n\n")
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *server) message(u update, version uint64) []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "id: %s\ndata: ", s.board.feed.Token(version))
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // it is not part of HTML, and escaping makes it half as long again
	_ = enc.Encode(u)        // cannot fail: only maps and strings; it ends the line
	out.WriteByte('\n')
	return out.Bytes()
}
