// Package sim serves made-up machines with the handler of ration web, each at an address of its own of this machine
// and with a certificate of its own, for tests and measurements of a fleet.
package sim

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ration/check/webtest"
	"ration/internal/agent"
	"ration/internal/fleet"
	"ration/internal/node"
	"ration/internal/web"
	"ration/machine"
)

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority returns an authority that nobody trusts yet.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "made up"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	text, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(text)
	return &Authority{cert, key}, err
}

// PEM returns the authority's certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Certificate returns a certificate of a name or an address, valid until a time.
func (a *Authority) Certificate(name string, until time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: until, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if ip := net.ParseIP(name); ip != nil {
		of.IPAddresses = []net.IP{ip}
	} else {
		of.DNSNames = []string{name}
	}
	text, err := x509.CreateCertificate(rand.Reader, of, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{text}, PrivateKey: key}, nil
}

// Token is the token of all made-up machines.
const Token = "0123456789abcdef0123456789abcdef"

// Sim is a number of made-up machines.
type Sim struct {
	Authority *Authority
	Port      string
	machines  []*madeUp
	feed      *fleet.Feed
	Lines     atomic.Int64 // lines that were sent, without the empty ones
}

// madeUp is a machine that is made up when it is asked for.
type madeUp struct {
	sim    *Sim
	number int
	mu     sync.Mutex
	now    *machine.Machine // guarded by mu
	at     uint64           // guarded by mu: version of now
}

// Start serves machines until the context ends. Every second all of them have other temperatures and powers, and
// one in ten another amount of memory in use. Some have findings.
func Start(ctx context.Context, count int) (*Sim, error) {
	authority, err := NewAuthority()
	if err != nil {
		return nil, err
	}
	s := &Sim{Authority: authority, feed: fleet.NewFeed()}
	handlers := map[string]http.Handler{}
	for n := range count {
		m := &madeUp{sim: s, number: n, now: invented(n)}
		s.machines = append(s.machines, m)
		opts := web.Options{Source: m, Version: "0.0.0", Token: Token, AnyHost: true, TLS: true, MaxStreams: 8, Watch: s.count(agent.NewRemote(m, "0.0.0"))}
		handlers[s.Address(n)] = web.New(opts)
	}
	listen, err := net.Listen("tcp", "0.0.0.0:0") // all of 127.0.0.0/8
	if err != nil {
		return nil, err
	}
	_, s.Port, _ = net.SplitHostPort(listen.Addr().String())
	secure := &tls.Config{NextProtos: []string{"http/1.1"}, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return authority.Certificate(localOf(hello.Conn.LocalAddr()), time.Now().Add(time.Hour))
	}}
	server := &http.Server{TLSConfig: secure, ReadHeaderTimeout: 30 * time.Second, ErrorLog: log.New(io.Discard, "", 0), BaseContext: func(net.Listener) context.Context { return ctx },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if h := handlers[localOf(r.Context().Value(http.LocalAddrContextKey).(net.Addr))]; h != nil {
				h.ServeHTTP(w, r)
			}
		})}
	go func() { _ = server.ServeTLS(listen, "", "") }()
	go func() {
		every := time.NewTicker(time.Second)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				_ = server.Close()
				return
			case <-every.C:
				s.feed.Advance()
			}
		}
	}()
	return s, nil
}

// count counts the lines that a handler writes.
func (s *Sim) count(h http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(counter{w, s}, r) }
}

type counter struct {
	http.ResponseWriter
	sim *Sim
}

func (c counter) Write(text []byte) (int, error) {
	if len(text) > 1 {
		c.sim.Lines.Add(1)
	}
	return c.ResponseWriter.Write(text)
}

// Unwrap is for http.ResponseController.
func (c counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func localOf(a net.Addr) string {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return ""
	}
	return at.Addr().Unmap().String()
}

// Address returns the IP address of a machine.
func (s *Sim) Address(n int) string { return fmt.Sprintf("127.1.%d.%d", n/250, n%250+1) }

// Files writes the files that ration web --fleet needs, and returns its arguments.
func (s *Sim) Files(folder string) (args []string, err error) {
	var list strings.Builder
	for n := range s.machines {
		fmt.Fprintf(&list, "%s:%s\n", s.Address(n), s.Port)
	}
	path := func(name string) string { return filepath.Join(folder, name) }
	for name, text := range map[string]string{"list": list.String(), "token": Token + "\n", "ca.pem": string(s.Authority.PEM())} {
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	return []string{"--fleet", "@" + path("list"), "--fleet-token", path("token"), "--ca", path("ca.pem")}, nil
}

// invented returns a machine with 8 GPUs and about 14 jobs.
func invented(n int) *machine.Machine {
	m := webtest.SharedMachine(8, 6+n%5)
	for i := range m.Jobs { // other users on other machines
		user := (m.Jobs[i].UID - 1000 + n/7) % 40
		m.Jobs[i].Owner, m.Jobs[i].UID = webtest.User(user), 1000+user
	}
	switch {
	case n%100 == 17:
		m.Findings = []machine.Finding{{Kind: machine.OverLimit, Device: 3, Text: "the driver counts 61 GiB on device 3 for job alice/train, whose limit is 40 GiB", Remedy: "look at its processes"}}
	case n%250 == 31:
		m.Findings = []machine.Finding{{Kind: machine.DeviceFailed, Device: 5, Text: "the driver answers a question about device 5 with an error: GPU is lost", Remedy: "restart the machine"}}
	case n%25 == 3:
		m.Findings = []machine.Finding{{Kind: machine.OutsideJobs, Device: 1, Text: "python3 (pid 4711) of user erin holds 9 GiB of device 1, and belongs to no job", Remedy: "start it with ration run"}}
	}
	return m
}

// Latest implements web.Source.
func (m *madeUp) Latest() (*machine.Machine, []machine.Event, <-chan struct{}) {
	version, next := m.sim.feed.Latest()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == version {
		return m.now, nil, next
	}
	now := m.now.Clone()
	for i := range now.Devices {
		watts, warm, busy := 300+float64((version+uint64(i))%50), 50+int(version)%10, int(version*7)%100
		now.Devices[i].Power, now.Devices[i].Temperature, now.Devices[i].Utilization = &watts, &warm, &busy
	}
	for v := m.at + 1; v <= version; v++ {
		if (uint64(m.number)+v)%10 == 0 && len(now.Jobs) > 0 {
			d := &now.Jobs[int(v)%len(now.Jobs)].Devices[0]
			g := &now.Devices[d.Device]
			g.Used -= min(g.Used, d.Used)
			d.Used = d.Limit * (1 + v*uint64(7+m.number)%9) / 10
			g.Used = min(g.Total, g.Used+d.Used)
		}
	}
	m.now, m.at = &now, version
	return m.now, nil, next
}

// History implements web.Source.
func (m *madeUp) History() (node.History, error) { return node.History{}, nil }
