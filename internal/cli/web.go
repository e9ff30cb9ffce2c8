package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"ration/internal/agent"
	"ration/internal/agent/privsep"
	"ration/internal/connlimit"
	"ration/internal/job"
	"ration/internal/proc"
	"ration/internal/web"
	"ration/machine"
)

// defaultWebListen is the address of the page, if the port is free.
const defaultWebListen = "127.0.0.1:9411"

type webFlags struct {
	listen   string
	readOnly bool
	noAgent  bool
	insecure bool

	tlsCert, tlsKey, token string   // files
	fleet                  []string // machines
	fleetToken, ca         string   // files
}

// Page is what `ration web --json` prints.
type Page struct {
	URL    string `json:"url"` // with the token; for this user only
	Listen string `json:"listen"`
}

func newWebCommand(a *app) *cobra.Command {
	var f webFlags
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Show the machine in a browser, as it changes",
		Long: `Serve a page that shows the machine as it changes, until it is ended by Ctrl-C
or SIGTERM: its findings; its GPUs as bars, with the jobs in them, their limits,
and what is held outside of jobs; the last 15 minutes; who used the GPUs in a
day and a week, from the accounts of an agent, of any part of that time that you
select; jobs with their processes as a tree; and refusals and deaths as they
happen. Root's page shows the jobs of all users, others their own, and what is
used and handed out of each GPU.

It prints the address to open. The address contains a secret token: with it,
one sees everything that you may see. Every user of the machine can connect to
the port, but gets nothing without the token. From your own computer, forward
the port first, with ssh -L 9411:127.0.0.1:9411, and open the same address
there. Not with localhost: that can be ::1 as well, where another user may
listen, and would get the token. ?theme=dark or ?theme=light in the address is
in place of the system's theme.

Without a certificate the page is not encrypted, so it is served only at an
address of this machine itself. With --tls-cert and --tls-key it is served to
other machines as well. The files may be replaced while it runs. --insecure
serves it without a certificate: then everybody on the way can read the token,
and do on the page what you may.

With --token-file, the token is the first line of that file instead of a random
one, and the page is at the top of the address. It needs a certificate. The page
then also answers /v1/watch, the stream that a fleet reads; the client sends the
token in the header Authorization: Bearer.

With --fleet it shows many machines in place of this one: their GPUs, which user
holds how much of them, and which machines have findings or do not answer. On
each of them ration web must run with --tls-cert and --token-file. MACHINES is:

` + fleetWords + `
The flag may be repeated, and takes several with commas. Files and DNS are read
again every 30 seconds. --fleet-token names the file with the token of these
machines. Their certificates are checked against the authorities of the system,
or those in --ca. Nothing can be changed on this page. /v1/fleet there has the
same as JSON.

A job's limits can be changed on the page, as ration limit does and with the
rights of the user who started it; not with --read-only. Nothing else can be
changed.

It uses the agent if there is one (ration agent). Otherwise it reads the jobs
itself: then the history begins when it was started, and it returns the memory
of dead processes to their jobs.

Exit status: 0 when it was asked to end; 1 if it could not start, for example
because the address is taken.`,
		Example: "  ration web\n  ration web --listen 127.0.0.1:8080 --read-only\n" +
			"  ration web --listen :9411 --tls-cert c.pem --tls-key k.pem --token-file t --read-only\n" +
			"  ration web --fleet @/etc/ration/fleet --fleet-token /etc/ration/fleet.token",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runWeb(cmd, f) },
	}
	cmd.Flags().StringVar(&f.listen, "listen", "", "serve it at this `address` (default "+defaultWebListen+", or a free port if that is taken)")
	cmd.Flags().BoolVar(&f.readOnly, "read-only", false, "change nothing: neither limits, nor the memory of dead processes")
	cmd.Flags().BoolVar(&f.insecure, "insecure", false, "serve it at an address that other machines can reach, without encryption")
	cmd.Flags().BoolVar(&f.noAgent, "no-agent", false, "do not use an agent")
	f.addRemote(cmd)
	return cmd
}

const (
	webRequestTimeout = 5 * time.Second // includes the body; even a refused request is read first
	maxWebConns       = 64
	maxWebStreams     = 32
)

func (a *app) runWeb(cmd *cobra.Command, f webFlags) error {
	if err := checkListen(cmp.Or(f.listen, defaultWebListen)); err != nil {
		return err
	}
	if err := f.checkRemote(); err != nil {
		return err
	}
	if err := privsep.Undumpable(); err != nil { // before there is a token in it
		return err
	}
	opts := web.Options{Version: version, Token: web.Secret(), ID: web.Secret()[:12], MaxStreams: maxWebStreams}
	secure, err := f.secure(&opts)
	if err != nil {
		return err
	}
	listen, err := listenWeb(f.listen)
	if err != nil {
		return err
	}
	defer listen.Close()
	if err := checkReach(listen.Addr(), f.insecure || secure != nil); err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	pages, done, err := a.webPages(ctx, f, opts)
	if err != nil {
		return err
	}
	defer done()
	defer stop()
	url := pageURL(listen.Addr(), f, opts)
	err = a.print(Page{url, listen.Addr().String()}, func() {
		text := "Open this address in a browser. Keep it to yourself: it shows what you see, and lets its reader change what you may change. Ctrl-C ends it."
		if f.token != "" {
			text = "Open this address in a browser, with the name in the certificate as its host. It asks for the token. Ctrl-C ends it."
		}
		a.out.printf("%s\n%s\n", a.out.style(bold, url), a.out.wrap(text, 0))
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: pages, ReadTimeout: webRequestTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, TLSConfig: secure,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	if secure != nil { // everybody who can reach it could fill the log with failed handshakes
		server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	}
	return serveUntil(ctx, server, listen)
}

// serveUntil serves until the context ends.
func serveUntil(ctx context.Context, server *http.Server, listen net.Listener) error {
	connlimit.Attach(server)
	limited := net.Listener(connlimit.NewEvicting(listen, maxWebConns))
	failed := make(chan error, 1)
	go func() {
		if server.TLSConfig != nil {
			failed <- server.ServeTLS(limited, "", "")
		} else {
			failed <- server.Serve(limited)
		}
	}()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	_ = server.Close() // its streams do not end by themselves
	return nil
}

// webPages returns the page of this machine or of a fleet. done waits until it has ended, after the context.
func (a *app) webPages(ctx context.Context, f webFlags, opts web.Options) (pages http.Handler, done func(), err error) {
	if len(f.fleet) > 0 {
		return fleetPages(ctx, f, opts)
	}
	// It has no journal, because it has no log: it must not record that events were logged.
	own := agent.Options{Version: version, Log: slog.New(slog.DiscardHandler), Reap: reapAs}
	if f.readOnly {
		own.Reap = nil
	}
	source, err := agent.NewSource(ctx, own, f.noAgent, func(err error) { printError(a.err, err) })
	if err != nil {
		return nil, nil, err
	}
	opts.Source, opts.Note = source, source.Note
	if !job.AllUsers() {
		opts.Viewer = proc.UserName(os.Geteuid())
	}
	if !f.noAgent {
		opts.Usage = viewerReport
	}
	if !f.readOnly {
		opts.MayChange, opts.SetLimit = mayChangeLimit, setLimit
	}
	if f.token != "" {
		opts.Watch = agent.NewRemote(source, version).ServeHTTP
	}
	return web.New(opts), source.Close, nil
}

// listenWeb listens at an address. Without one it uses the default port, or any free port.
func listenWeb(address string) (net.Listener, error) {
	l, err := net.Listen(connlimit.Network(address), cmp.Or(address, defaultWebListen))
	if address == "" && errors.Is(err, unix.EADDRINUSE) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("serving the page: %w (name another address with --listen)", err)
	}
	return l, nil
}

// checkReach refuses an address that other machines can reach, unless that is wanted.
func checkReach(at net.Addr, insecure bool) error {
	if tcp, is := at.(*net.TCPAddr); insecure || is && tcp.IP.IsLoopback() {
		return nil
	}
	return usageError("--listen %s: other machines can reach it, and the page is not encrypted: everybody on the way could read its token (use --tls-cert, or ssh -L; --insecure serves it anyway)", at)
}

// mayChangeLimit reports whether this process may change a job's limits. If there is an operator's
// file beside the region, only that file matters. Root may change all limits. A path of another
// user is not inspected.
func mayChangeLimit(j *machine.Job) bool {
	switch {
	case j.Error != "":
		return false
	case os.Geteuid() == 0:
		return true
	case j.UID != os.Geteuid():
		return false
	}
	path := j.Path + ".limits"
	if unix.Faccessat(unix.AT_FDCWD, path, unix.F_OK, unix.AT_EACCESS) != nil {
		path = j.Path
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) == nil
}
