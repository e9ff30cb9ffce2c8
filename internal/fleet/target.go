package fleet

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"ration/internal/termtext"
)

// DefaultPort is the port of a machine whose address names none: that of ration web.
const DefaultPort = "9411"

// maxMachines bounds the machines of a fleet, and maxList the bytes of its list.
const (
	maxMachines = 4096
	maxList     = 1 << 20
)

// lookupTimeout is for one DNS name.
const lookupTimeout = 5 * time.Second

// Target is how to reach one machine.
type Target struct {
	Name   string // of the machine on the page; from the operator's list or DNS, never from the machine
	Scheme string // https, or http for an address of this machine
	Dial   string // address to connect to, with the port
	Server string // name in its certificate
	Port   string
	Token  string // file with its token; empty for the token of all machines
}

// URL returns the address of the machine's page.
func (t *Target) URL() string { return t.Scheme + "://" + t.Dial + "/" }

// entry is a word of the operator's list. It stands for any number of machines.
type entry struct {
	kind  string // "", "dns" or "dnssrv"
	text  string // without the prefix
	token string
}

// List is the machines of a fleet as the operator names them.
type List struct {
	words []string // HOST[:PORT], @FILE, dns+NAME[:PORT] or dnssrv+NAME
	last  map[entry][]Target
	files map[string][]entry

	lookupHost func(ctx context.Context, name string) ([]netip.Addr, error)
	lookupSRV  func(ctx context.Context, name string) ([]*net.SRV, error)
}

// NewList checks the words of a list, without DNS and without reading files.
func NewList(words []string) (*List, error) {
	l := &List{words: words, last: map[entry][]Target{}, files: map[string][]entry{},
		lookupHost: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		},
		lookupSRV: func(ctx context.Context, name string) ([]*net.SRV, error) {
			_, all, err := net.DefaultResolver.LookupSRV(ctx, "", "", name)
			return all, err
		}}
	for _, w := range words {
		if strings.HasPrefix(w, "@") {
			continue
		}
		if _, err := parseEntry(w, ""); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Targets returns the machines of the list now, sorted by their names, and what is wrong with it. If a file
// cannot be read or DNS does not answer, the machines that were found there before stay: a question without
// an answer does not mean that they are gone.
func (l *List) Targets(ctx context.Context) (out []Target, problems []error) {
	for _, e := range l.entries(&problems) {
		found, err := l.resolve(ctx, e)
		if err != nil {
			problems = append(problems, err)
			found = l.last[e]
		}
		l.last[e] = found
		out = append(out, found...)
	}
	slices.SortStableFunc(out, func(a, b Target) int { return strings.Compare(a.Name, b.Name) })
	out = slices.CompactFunc(out, func(a, b Target) bool { return a.Name == b.Name })
	if len(out) > maxMachines {
		problems = append(problems, fmt.Errorf("the list has %d machines, and the first %d are read (divide it into several fleets)", len(out), maxMachines))
		out = out[:maxMachines]
	}
	return out, problems
}

// entries returns the entries of all words and files.
func (l *List) entries(problems *[]error) (out []entry) {
	for _, w := range l.words {
		path, isFile := strings.CutPrefix(w, "@")
		if !isFile {
			e, _ := parseEntry(w, "") // NewList has checked it
			out = append(out, e)
			continue
		}
		found, err := readList(path)
		if err != nil {
			*problems = append(*problems, err)
		}
		if found != nil {
			l.files[path] = found
		}
		out = append(out, l.files[path]...)
	}
	return out
}

// readList reads a file of entries: one on each line, and after it the file with its token if it has one of its
// own. The good lines count if others are bad. It returns nil if the file cannot be read.
func readList(path string) ([]entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the list of machines: %w", err)
	}
	defer f.Close()
	out, problems := []entry{}, []error{}
	lines, size := bufio.NewScanner(f), 0
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(text)
		if size += len(text); size > maxList {
			return nil, fmt.Errorf("reading the list of machines: %s is larger than %d MiB", path, maxList>>20)
		}
		if len(words) == 0 {
			continue
		}
		e, err := parseEntry(words[0], strings.Join(words[1:], " "))
		if err != nil {
			problems = append(problems, fmt.Errorf("%s, line %d: %w", path, n, err))
			continue
		}
		out = append(out, e)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the list of machines: %s: %w", path, err)
	}
	return out, errors.Join(problems...)
}

// parseEntry checks one entry.
func parseEntry(word, token string) (entry, error) {
	e := entry{text: word, token: token}
	for _, kind := range []string{"dns", "dnssrv"} {
		if rest, is := strings.CutPrefix(word, kind+"+"); is {
			e.kind, e.text = kind, rest
		}
	}
	if e.kind == "dnssrv" {
		if e.text == "" || strings.ContainsAny(e.text, ":/@ ") {
			return e, fmt.Errorf("%q: not a DNS name (use dnssrv+_ration._tcp.example.com)", word)
		}
		return e, nil
	}
	t, err := parseAddress(e.text)
	if err == nil && e.kind == "dns" && t.Scheme != "https" {
		err = fmt.Errorf("%q: without encryption", word)
	}
	return e, err
}

// parseAddress returns the machine at HOST[:PORT], with https:// before it or not. http:// is for a loopback
// address only: a proxy on this machine may listen there.
func parseAddress(text string) (Target, error) {
	t := Target{Scheme: "https", Name: text}
	rest, https := strings.CutPrefix(text, "https://")
	rest, plain := strings.CutPrefix(rest, "http://")
	host, port, err := net.SplitHostPort(strings.TrimSuffix(rest, "/"))
	if err != nil {
		host, port = strings.Trim(strings.TrimSuffix(rest, "/"), "[]"), DefaultPort
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 || host == "" || https && plain || strings.ContainsAny(host, "/@?#% ") || termtext.Printable(host) != host {
		return t, fmt.Errorf("%q: not the address of a machine (use HOST, HOST:PORT, @FILE, dns+NAME:PORT or dnssrv+NAME)", text)
	}
	if ip, err := netip.ParseAddr(host); plain && (err != nil || !ip.IsLoopback()) {
		return t, fmt.Errorf("%q: without encryption, everybody on the way could read the token and change the answers (use https, or http://127.0.0.1:PORT for a proxy on this machine)", text)
	}
	if plain {
		t.Scheme = "http"
	}
	t.Dial, t.Server, t.Port, t.Name = net.JoinHostPort(host, port), host, port, host
	if port != DefaultPort {
		t.Name = net.JoinHostPort(host, port)
	}
	return t, nil
}

// resolve returns the machines of one entry.
func (l *List) resolve(ctx context.Context, e entry) (out []Target, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	switch e.kind {
	case "dns":
		t, _ := parseAddress(e.text) // parseEntry has checked it
		addresses, err := l.lookupHost(ctx, t.Server)
		if err != nil {
			return nil, lookupError(e, err)
		}
		for _, a := range addresses {
			m := t // the certificate is of the name that the operator gave
			m.Dial = net.JoinHostPort(a.Unmap().String(), t.Port)
			m.Name = strings.TrimSuffix(m.Dial, ":"+DefaultPort)
			out = append(out, m)
		}
	case "dnssrv":
		all, err := l.lookupSRV(ctx, e.text)
		if err != nil {
			return nil, lookupError(e, err)
		}
		for _, s := range all {
			t, err := parseAddress(net.JoinHostPort(strings.TrimSuffix(s.Target, "."), strconv.Itoa(int(s.Port))))
			if err != nil {
				return nil, lookupError(e, err)
			}
			out = append(out, t)
		}
	default:
		t, _ := parseAddress(e.text)
		out = []Target{t}
	}
	for i := range out {
		out[i].Token = cmp.Or(e.token, out[i].Token)
	}
	return out, nil
}

// lookupError returns the error of an entry whose machines DNS does not name.
func lookupError(e entry, err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		err = errors.New(dnsReason(dns))
	}
	return fmt.Errorf("asking DNS for the machines of %s+%s: %w", e.kind, e.text, err)
}

// dnsReason says in words why a name has no address. The error itself names the server that was asked, which helps nobody.
func dnsReason(err *net.DNSError) string {
	if err.IsNotFound {
		return "no such host (is the name right?)"
	}
	return "DNS does not answer for this name"
}
