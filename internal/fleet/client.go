package fleet

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"ration/internal/termtext"
)

// These bound what a machine may send, and how long it may take.
const (
	maxLine    = 1 << 20   // bytes of a line
	maxHeader  = 16 << 10  // bytes of the headers of its answer
	byteRate   = 128 << 10 // bytes a second that are read in the long run
	minCost    = 32 << 10  // what a line counts as at least, so that there are at most four a second
	dialTime   = 5 * time.Second
	answerTime = 10 * time.Second // for a handshake, and for the headers
	// silence is the longest time for one line, whatever arrives in it. A machine sends one in five seconds.
	silence   = 20 * time.Second
	maxToken  = 4 << 10
	maxReason = 200
)

// A machine that fails is tried again after minWait, and then after twice as long each time.
const (
	minWait = time.Second
	maxWait = time.Minute
	// steady is how long a stream must last for the next failure to count as the first.
	steady = time.Minute
)

// errToken is that a machine does not accept the token.
var errToken = errors.New("it refuses the token (compare its --token-file with this fleet's)")

// client connects to machines.
type client struct {
	token   string // file
	roots   *x509.CertPool
	decode  chan struct{} // as many lines are decoded at once
	silence time.Duration
	wait    time.Duration // minWait
}

func newClient(opts Options) (*client, error) {
	c := &client{token: opts.Token, decode: make(chan struct{}, runtime.GOMAXPROCS(0)), silence: silence, wait: minWait}
	if opts.CA != "" {
		text, err := os.ReadFile(opts.CA)
		if err != nil {
			return nil, fmt.Errorf("reading the authorities' certificates: %w", err)
		}
		if c.roots = x509.NewCertPool(); !c.roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("reading the authorities' certificates: %s has none (it must be a PEM file)", opts.CA)
		}
	}
	return c, nil
}

// ReadToken returns the token in a file: its first line. Other users must not be able to read the file.
func ReadToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	if st.Mode().IsRegular() && st.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("reading the token: every user can read or change %s (chmod 600 it)", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxToken))
	if err != nil {
		return "", fmt.Errorf("reading the token: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	const least = 16
	if line = strings.TrimSpace(line); len(line) < least || termtext.Printable(line) != line || strings.Contains(line, " ") {
		return "", fmt.Errorf("reading the token: the first line of %s is not one (at least %d characters, as openssl rand -hex 16 prints)", path, least)
	}
	return line, nil
}

// follow reads a machine until the context ends, and tries again when it fails.
func (f *Fleet) follow(ctx context.Context, m *followed) {
	for wait := f.client.wait; ctx.Err() == nil; wait = min(2*wait, maxWait) {
		begun := time.Now()
		err := f.client.read(ctx, &m.target, func(version string, next *summary) {
			f.update(m, func(now *Machine) { next.into(now, version, time.Now().UTC()) })
		})
		if ctx.Err() != nil {
			return
		}
		f.update(m, func(now *Machine) {
			if now.State != Unreachable {
				now.State, now.Since = Unreachable, time.Now().UTC()
			}
			now.Reason = reason(err)
		})
		if time.Since(begun) > steady {
			wait = f.client.wait
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)): // a thousand machines do not come back in the same moment
		}
	}
}

// read connects to a machine and calls visit for each of its lines. It returns why the stream has ended.
func (c *client) read(ctx context.Context, t *Target, visit func(version string, s *summary)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	token, err := ReadToken(cmp.Or(t.Token, c.token))
	if err != nil {
		return err
	}
	// Each machine has a transport of its own: a shared one could hand the connection to one machine to a
	// request for another machine of the same name (dns+NAME).
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true, TLSHandshakeTimeout: answerTime, ResponseHeaderTimeout: answerTime, MaxResponseHeaderBytes: maxHeader,
		TLSClientConfig: &tls.Config{RootCAs: c.roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTime}).DialContext(ctx, network, t.Dial)
		}}
	defer transport.CloseIdleConnections()
	asks := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, t.Scheme+"://"+net.JoinHostPort(t.Server, t.Port)+"/v1/watch", nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := asks.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	switch code := answer.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return errToken
	case code == http.StatusNotFound:
		return errors.New("it has no /v1/watch (serve it with ration web --token-file, of this version or a later one)")
	case code >= 300 && code < 400:
		return fmt.Errorf("it redirects to another address (status %d), which is not followed", code)
	case code != http.StatusOK:
		return fmt.Errorf("it answers with status %d", code)
	}
	return c.lines(ctx, cancel, answer, visit)
}

// errSilent is that a machine has sent no whole line in time.
var errSilent = errors.New("it does not answer")

// lines reads the lines of an answer.
func (c *client) lines(ctx context.Context, cancel context.CancelCauseFunc, answer *http.Response, visit func(version string, s *summary)) error {
	silent := time.AfterFunc(c.silence, func() { cancel(errSilent) })
	defer silent.Stop()
	version := clean(answer.Header.Get("Ration-Version"), maxName)
	costs := rate.NewLimiter(byteRate, 2*maxLine)
	body := bufio.NewReader(answer.Body)
	var have jobs
	for {
		line, err := readLine(body)
		if errors.Is(context.Cause(ctx), errSilent) {
			return errSilent
		}
		if err != nil {
			return err
		}
		if silent.Stop(); len(bytes.TrimSpace(line)) > 0 {
			s, err := c.summarise(ctx, line, &have)
			if err != nil {
				return err
			}
			visit(version, s)
		}
		// What it sends meanwhile waits in its own buffers. A line without content costs as well.
		if err := costs.WaitN(ctx, max(len(line), minCost)); err != nil {
			return err
		}
		silent.Reset(c.silence)
	}
}

// summarise decodes a line. Only a few lines are decoded at once, because one in which little is said of
// much takes some tens of its size.
func (c *client) summarise(ctx context.Context, line []byte, have *jobs) (*summary, error) {
	select {
	case c.decode <- struct{}{}:
		defer func() { <-c.decode }()
		return summarise(line, have)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// readLine returns the next line, without its end. Its memory is not kept.
func readLine(body *bufio.Reader) (line []byte, err error) {
	for {
		part, err := body.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, fmt.Errorf("it sends a line of more than %d MiB", maxLine>>20)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF):
			return nil, errors.New("it has closed the connection")
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// reason says in a few words why a machine cannot be read. Nothing of it is a text of the machine, except
// for names in its certificate.
func reason(err error) string {
	var unknown x509.UnknownAuthorityError
	var wrongName x509.HostnameError
	var invalid x509.CertificateInvalidError
	var timeout net.Error
	var asked *url.Error
	var dialled *net.OpError
	var dns *net.DNSError
	text := err.Error()
	switch {
	case errors.As(err, &unknown):
		text = "its certificate is of an unknown authority (name the authority with --ca)"
	case errors.As(err, &wrongName):
		text = "its certificate is of another name than " + wrongName.Host
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		text = "its certificate has expired, or is not valid yet"
	case errors.As(err, &invalid):
		text = "its certificate is not valid for a server"
	case errors.As(err, &dns): // before the reasons of a connection: this one may be that to the DNS server
		text = dnsReason(dns)
	case errors.Is(err, syscall.ECONNREFUSED):
		text = "nothing listens there (connection refused)"
	case errors.As(err, &timeout) && timeout.Timeout():
		text = errSilent.Error()
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		text = "it has closed the connection"
	case strings.Contains(text, "server gave HTTP response to HTTPS client"):
		text = "it answers without encryption (serve it with ration web --tls-cert)"
	case errors.As(err, &asked) && !errors.As(err, &dialled) && !strings.HasPrefix(asked.Err.Error(), "tls: "):
		text = "what it answers is not HTTP" // the error quotes it
	}
	return clean(text, maxReason)
}
