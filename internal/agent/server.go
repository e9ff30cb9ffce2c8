package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/connlimit"
	"ration/internal/job"
	"ration/internal/metrics"
	"ration/internal/web"
)

const (
	requestTimeout = 5 * time.Second
	writeTimeout   = 10 * time.Second // for one answer, or one part of a stream
	maxConns       = 128
	maxConnsOfUser = 16
	maxHeader      = 16 << 10
	maxPublic      = 64 // simultaneous connections to the TCP port
	// maxPublicOfUser is how many of them processes of one user of this machine may have.
	maxPublicOfUser = 32
	// maxPublicStreams is how many of them may be streams of a page. The rest stay free for
	// Prometheus.
	maxPublicStreams = 24
)

// peer is the user at the other end of a connection.
type peer struct {
	uid  int
	all  bool            // may see all users' jobs
	user *connlimit.User // nil in tests
}

type peerKey struct{}

// Claim makes this process the only agent of a folder.
type Claim struct {
	Socket *net.UnixListener
	Lock   *os.File // holds the lock until every process that has this file open has closed it
}

// Listener returns a listener at the claim's socket.
func (c *Claim) Listener() net.Listener { return newListener(c.Socket) }

// Release closes the socket, and removes its file unless systemd made it.
func (c *Claim) Release() { _, _ = c.Socket.Close(), c.Lock.Close() }

// ClaimFolder claims a folder of jobs. It uses the agent's socket that systemd has passed, or makes
// a new one. Until the claim is released, no other agent can serve that folder.
func ClaimFolder(folder string) (c *Claim, err error) {
	path := filepath.Join(folder, job.AgentSocket)
	passed, err := passedSocket(path) // first, because it also removes systemd's variables
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && passed != nil {
			_ = passed.Close()
		}
	}()
	lock, err := os.OpenFile(filepath.Join(folder, job.AgentLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making the agent's socket: %w", err)
	}
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &whole); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, fmt.Errorf("folder %s: %w", folder, ErrRunning)
		}
		return nil, fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	socket := passed
	if socket == nil {
		if socket, err = makeSocket(path); err != nil {
			_ = lock.Close()
			return nil, err
		}
	}
	return &Claim{socket, lock}, nil
}

func newListener(socket net.Listener) net.Listener {
	return connlimit.Listen(socket, connlimit.New(maxConnsOfUser, maxConns))
}

// makeSocket makes a socket at path, and replaces the socket of a killed agent. The caller holds
// the lock.
func makeSocket(path string) (*net.UnixListener, error) {
	if isListening(path) { // systemd listens for an agent that it will start: a new socket would take that agent's clients
		return nil, fmt.Errorf("making the agent's socket: %s: %w, or systemd listens for one (systemctl start ration-agent)", path, ErrRunning)
	}
	_ = os.Remove(path)
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("making the agent's socket: %w", err)
	}
	// Every user may connect. The answer depends on the user.
	mode := os.FileMode(0o600)
	if os.Geteuid() == 0 {
		mode = 0o666
	}
	if err := os.Chmod(path, mode); err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("making the agent's socket: %w", err)
	}
	return socket, nil
}

// Serve answers requests on the socket and, if the options say so, serves metrics, until the
// context ends. Requests wait for the first scan, because systemd may have started the agent for
// this request.
func (a *Agent) Serve(ctx context.Context, socket net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/machine", func(w http.ResponseWriter, r *http.Request) {
		p := askerOf(r)
		writeJSON(w, p, func() any {
			return Visible(a.Machine(), p.uid, p.all)
		})
	})
	mux.HandleFunc("GET /v1/history", func(w http.ResponseWriter, r *http.Request) {
		p := askerOf(r)
		writeJSON(w, p, func() any { return a.history.read(func(uid int) bool { return p.all || uid == p.uid }) })
	})
	mux.HandleFunc("GET /v1/usage", a.usage.serve)
	mux.HandleFunc("GET /v1/events", a.serveEvents)
	mux.HandleFunc("GET /v1/watch", a.serveWatch)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		p := askerOf(r)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_ = p.answer(w, func(out io.Writer) error { // fails if the client has disconnected
			return metrics.Write(out, Visible(a.Machine(), p.uid, p.all), metrics.Options{Version: a.opts.Version, Jobs: true, Accounts: a.usage,
				Visible: func(uid int) bool { return p.all || uid == p.uid }})
		})
	})
	api := &http.Server{Handler: withVersion(a.opts.Version, byUser(a.afterFirstScan(mux))), ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout, WriteTimeout: writeTimeout, IdleTimeout: requestTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(a.opts.Log.Handler(), slog.LevelDebug), BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			client := c.(*connlimit.Conn)
			return context.WithValue(ctx, peerKey{}, peer{client.UID, client.UID == 0 || client.UID == job.User(), client.User})
		}}
	failed := make(chan error, 2)
	servers := []*http.Server{api}
	accepted := make(chan struct{}) // closed when the server of the socket has stopped accepting connections
	go func() {
		err := api.Serve(socket)
		close(accepted)
		failed <- err
	}()
	if a.opts.Listen != "" {
		public, err := a.opts.OpenListen()
		if err != nil && !errors.Is(err, unix.EADDRINUSE) {
			_ = api.Close()
			return fmt.Errorf("serving metrics: %w (name another address with --listen, or none)", err)
		}
		server := &http.Server{BaseContext: api.BaseContext, ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout, WriteTimeout: writeTimeout,
			MaxHeaderBytes: maxHeader, ErrorLog: api.ErrorLog}
		servers = append(servers, server)
		go func() { failed <- a.servePublic(ctx, server, public) }()
	}
	select {
	case err := <-failed:
		if ctx.Err() == nil {
			for _, s := range servers {
				_ = s.Close()
			}
			return err
		}
	case <-ctx.Done():
	}
	// A server knows all its connections only after it has stopped accepting: Shutdown could close
	// a connection that was accepted at that moment, without an answer.
	_ = socket.Close()
	<-accepted
	end, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, s := range servers {
		if s.Shutdown(end) != nil {
			_ = s.Close()
		}
	}
	return nil
}

// portAgain is how often the agent retries an address that another process uses. Tests set it.
var portAgain = 5 * time.Second

// servePublic serves the data that every user may see. Any user of the machine can take the port
// before the agent does. Then l is nil: the agent works without the port, and retries it.
func (a *Agent) servePublic(ctx context.Context, server *http.Server, l net.Listener) error {
	for logged := false; l == nil; logged = true {
		if !logged {
			a.opts.Log.Error("metrics are not served: another process has the address (end it, or name another address with --listen)", "address", a.opts.Listen)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(portAgain):
		}
		var err error
		if l, err = a.opts.OpenListen(); err != nil && !errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("serving metrics: %w", err)
		}
	}
	server.Handler = a.afterFirstScan(a.publicHandler(l.Addr()))
	connlimit.Attach(server)
	server.SetKeepAlivesEnabled(false) // no client may keep a connection
	a.opts.Log.Info("serving metrics", "address", l.Addr().String())
	// Every user of the machine can connect.
	return server.Serve(connlimit.NewEvicting(connlimit.ListenTCP(l, connlimit.New(maxPublicOfUser, maxPublic)), maxPublic))
}

// afterFirstScan returns a handler whose requests wait for the first scan.
func (a *Agent) afterFirstScan(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-a.scanned:
		case <-r.Context().Done():
			select {
			case <-a.scanned: // the agent is ending, and answers the pending requests
			default:
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// publicHandler serves the data that every user may see.
func (a *Agent) publicHandler(at net.Addr) http.Handler {
	mux := http.NewServeMux()
	all := metrics.Handler(requestTimeout,
		metrics.MachineCollector(a.Machine, metrics.Options{Version: a.opts.Version, Jobs: a.opts.JobMetrics, Accounts: a.usage}),
		metrics.AgentCollector(a.Stats), metrics.ProcessCollector())
	serve := func(w http.ResponseWriter, r *http.Request) {
		connlimit.Protect(r)
		connlimit.UserOf(r).Do(func() { all.ServeHTTP(connlimit.UnprotectWriter{ResponseWriter: w, Request: r}, r) })
	}
	if isLoopback(at) { // as for the page: a site that a user of the machine opens must not read it by DNS rebinding
		serve = web.LocalOnly(serve)
	}
	mux.HandleFunc("GET /metrics", serve)
	mux.Handle("/", web.New(web.Options{Source: publicSource{a}, Public: true, Version: a.opts.Version, MaxStreams: maxPublicStreams, AnyHost: !isLoopback(at)}))
	return mux
}

// isLoopback reports whether only this machine can reach an address.
func isLoopback(at net.Addr) bool {
	tcp, is := at.(*net.TCPAddr)
	return is && tcp.IP.IsLoopback()
}

// byUser returns a handler that serves each user's requests as fast as the user's part of the processor
// allows.
func byUser(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		askerOf(r).user.Begin()
		next.ServeHTTP(w, r)
	})
}

// askerOf returns the user that sent a request.
func askerOf(r *http.Request) peer {
	p, known := r.Context().Value(peerKey{}).(peer)
	if !known {
		return peer{uid: -1}
	}
	return p
}

// answer builds an answer in this user's turn, and writes it after the turn. So a client that does
// not read delays no other request of its user.
func (p peer) answer(w io.Writer, make func(out io.Writer) error) error {
	var out bytes.Buffer
	var err error
	sent := func() {}
	p.user.Do(func() {
		if err = make(&out); err == nil {
			sent = p.user.Hold(out.Len()) // before the user's next answer is made
		}
	})
	defer sent()
	if err == nil {
		_, err = w.Write(out.Bytes())
	}
	return err
}

func writeJSON(w http.ResponseWriter, p peer, make func() any) {
	w.Header().Set("Content-Type", "application/json")
	_ = p.answer(w, func(out io.Writer) error { return json.NewEncoder(out).Encode(make()) }) // fails if the client has disconnected
}
