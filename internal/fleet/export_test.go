package fleet

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// SetTimes sets how long a machine may be silent, and how long to wait after the first failure.
func (f *Fleet) SetTimes(silence, wait time.Duration) {
	f.client.silence, f.client.wait = silence, wait
}

// SetDNS sets the answers of DNS.
func (l *List) SetDNS(hosts func(name string) ([]netip.Addr, error), srv func(name string) ([]*net.SRV, error)) {
	l.lookupHost = func(_ context.Context, name string) ([]netip.Addr, error) { return hosts(name) }
	l.lookupSRV = func(_ context.Context, name string) ([]*net.SRV, error) { return srv(name) }
}

// Reason says why a machine cannot be read.
func Reason(err error) string { return reason(err) }

// MaxLine is the bound for a line.
const MaxLine = maxLine
