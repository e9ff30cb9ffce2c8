package cli

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"ration/internal/fleet"
	"ration/internal/web"
)

// addRemote adds the flags for other machines: to serve this one to them, and to read them.
func (f *webFlags) addRemote(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.tlsCert, "tls-cert", "", "encrypt it, with the certificate in this PEM `file`")
	cmd.Flags().StringVar(&f.tlsKey, "tls-key", "", "private key of the certificate, in this PEM `file`")
	cmd.Flags().StringVar(&f.token, "token-file", "", "use the token in this `file`, and answer a fleet; needs --tls-cert")
	cmd.Flags().StringSliceVar(&f.fleet, "fleet", nil, "show these `machines` in place of this one")
	addFleetFiles(cmd, &f.fleetToken, &f.ca)
}

// checkRemote checks which of these flags are given together.
func (f *webFlags) checkRemote() error {
	switch {
	case (f.tlsCert == "") != (f.tlsKey == ""):
		return usageError("--tls-cert and --tls-key: each needs the other")
	case f.token != "" && f.tlsCert == "":
		return usageError("--token-file: needs --tls-cert and --tls-key, because the token stays the same and would be sent unencrypted")
	case len(f.fleet) == 0 && (f.fleetToken != "" || f.ca != ""):
		return usageError("--fleet-token and --ca: are for --fleet")
	case len(f.fleet) > 0 && f.fleetToken == "":
		return usageError("--fleet: needs --fleet-token, the file with the token of these machines")
	case len(f.fleet) > 0 && f.noAgent:
		return usageError("--fleet: reads other machines, so --no-agent does not apply")
	}
	return nil
}

// secure returns the configuration for TLS, or nil without a certificate. It sets the options that follow from it.
func (f *webFlags) secure(opts *web.Options) (*tls.Config, error) {
	if f.tlsCert == "" {
		return nil, nil
	}
	c := &certificate{cert: f.tlsCert, key: f.tlsKey}
	if _, err := c.get(nil); err != nil {
		return nil, err
	}
	opts.TLS, opts.AnyHost = true, true // a browser checks the name
	if f.token != "" {
		token, err := fleet.ReadToken(f.token)
		if err != nil {
			return nil, err
		}
		opts.Token, opts.ID = token, ""
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: c.get}, nil
}

// pageURL returns the address of the page. A token from a file is not in it.
func pageURL(at net.Addr, f webFlags, opts web.Options) string {
	scheme := "http"
	if opts.TLS {
		scheme = "https"
	}
	host := hostOf(at, net.InterfaceAddrs)
	if f.token != "" {
		return fmt.Sprintf("%s://%s/", scheme, host)
	}
	return fmt.Sprintf("%s://%s/%s/?token=%s", scheme, host, opts.ID, opts.Token)
}

// hostOf returns the address at which a browser reaches the page. If it is served at all addresses of this machine, that
// is one of them that other machines can reach, IPv4 if there is one, as the page refuses names.
func hostOf(at net.Addr, addresses func() ([]net.Addr, error)) string {
	tcp, is := at.(*net.TCPAddr)
	if !is || !tcp.IP.IsUnspecified() {
		return at.String()
	}
	best := net.IPv4(127, 0, 0, 1)
	all, _ := addresses()
	for _, a := range all {
		n, is := a.(*net.IPNet)
		served := is && (n.IP.To4() != nil || tcp.IP.To4() == nil) // 0.0.0.0 is all of IPv4
		if served && n.IP.IsGlobalUnicast() && (best.IsLoopback() || best.To4() == nil && n.IP.To4() != nil) {
			best = n.IP
		}
	}
	return net.JoinHostPort(best.String(), strconv.Itoa(tcp.Port))
}

// certificate is a certificate that is read again when its file has changed: they are renewed every few weeks.
type certificate struct {
	cert, key string // files

	mu   sync.Mutex
	now  *tls.Certificate // guarded by mu
	read time.Time        // guarded by mu: when the file that now is from was changed
}

// get returns the certificate. While the new files cannot be used, because only one of them was replaced so far,
// the old certificate stays.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	st, err := os.Stat(c.cert)
	if c.now != nil && (err != nil || st.ModTime().Equal(c.read)) {
		return c.now, nil
	}
	next, loadErr := tls.LoadX509KeyPair(c.cert, c.key)
	switch {
	case err == nil && loadErr == nil:
		c.now, c.read = &next, st.ModTime()
	case c.now == nil && err == nil:
		err = loadErr
		fallthrough
	case c.now == nil:
		return nil, fmt.Errorf("reading the certificate: %w", err)
	}
	return c.now, nil
}

// fleetPages returns the page of a fleet, which it follows until the context ends.
func fleetPages(ctx context.Context, f webFlags, opts web.Options) (pages http.Handler, done func(), err error) {
	all, done, err := startFleet(ctx, f.fleet, f.fleetToken, f.ca)
	if err != nil {
		return nil, nil, err
	}
	return web.NewFleet(all, opts), done, nil
}
