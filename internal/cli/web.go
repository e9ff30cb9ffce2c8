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

The page is not encrypted, so it is served only at an address of this machine
itself. --insecure serves it to other machines as well: then everybody on the
way can read the token, and do on the page what you may. A proxy with TLS in
front of 127.0.0.1, or ssh -L, is better.

A job's limits can be changed on the page, as ration limit does and with the
rights of the user who started it; not with --read-only. Nothing else can be
changed.

It uses the agent if there is one (ration agent). Otherwise it reads the jobs
itself: then the history begins when it was started, and it returns the memory
of dead processes to their jobs.

Exit status: 0 when it was asked to end; 1 if it could not start, for example
because the address is taken.`,
		Example: "  ration web\n  ration web --listen 127.0.0.1:8080 --read-only",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runWeb(cmd, f) },
	}
	cmd.Flags().StringVar(&f.listen, "listen", "", "serve it at this `address` (default "+defaultWebListen+", or a free port if that is taken)")
	cmd.Flags().BoolVar(&f.readOnly, "read-only", false, "change nothing: neither limits, nor the memory of dead processes")
	cmd.Flags().BoolVar(&f.insecure, "insecure", false, "serve it at an address that other machines can reach, without encryption")
	cmd.Flags().BoolVar(&f.noAgent, "no-agent", false, "do not use an agent")
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
	if err := privsep.Undumpable(); err != nil { // before there is a token in it
		return err
	}
	listen, err := listenWeb(f.listen)
	if err != nil {
		return err
	}
	defer listen.Close()
	if err := checkReach(listen.Addr(), f.insecure); err != nil {
		return err
	}
	ctx, stop := untilSignal()
	defer stop()
	// It has no journal, because it has no log: it must not record that events were logged.
	own := agent.Options{Version: version, Log: slog.New(slog.DiscardHandler), Reap: reapAs}
	if f.readOnly {
		own.Reap = nil
	}
	source, err := agent.NewSource(ctx, own, f.noAgent, func(err error) { printError(a.err, err) })
	if err != nil {
		return err
	}
	defer source.Close()
	defer stop()
	opts := web.Options{Source: source, Version: version, Token: web.Secret(), ID: web.Secret()[:12], MaxStreams: maxWebStreams, Note: source.Note}
	if !job.AllUsers() {
		opts.Viewer = proc.UserName(os.Geteuid())
	}
	if !f.noAgent {
		opts.Usage = viewerReport
	}
	if !f.readOnly {
		opts.MayChange, opts.SetLimit = mayChangeLimit, setLimit
	}
	url := fmt.Sprintf("http://%s/%s/?token=%s", listen.Addr(), opts.ID, opts.Token)
	err = a.print(Page{url, listen.Addr().String()}, func() {
		a.out.printf("%s\n%s\n", a.out.style(bold, url), a.out.wrap("Open this address in a browser. It is for you only: whoever has it sees what you see, and may change what you may. Ctrl-C ends it.", 0))
	})
	if err != nil {
		return err
	}
	server := &http.Server{Handler: web.New(opts), ReadTimeout: webRequestTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	connlimit.Attach(server)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(connlimit.NewEvicting(listen, maxWebConns)) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	_ = server.Close() // its streams do not end by themselves
	return nil
}

// listenWeb listens at an address. Without one it uses the default port, or any free port.
func listenWeb(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", cmp.Or(address, defaultWebListen))
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
	return usageError("--listen %s: other machines can reach it, and the page is not encrypted: everybody on the way could read its token (use ssh -L or a proxy with TLS; --insecure serves it anyway)", at)
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
