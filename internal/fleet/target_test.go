package fleet_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/fleet"
)

// targets returns the names of a list's machines, each with its address, and the list's problems.
func targets(t *testing.T, l *fleet.List) (names string, problems []error) {
	t.Helper()
	all, problems := l.Targets(t.Context())
	var out []string
	for _, m := range all {
		out = append(out, strings.TrimSuffix(fmt.Sprint(m.Name, " ", m.URL(), " ", m.Server, " ", m.Token), " "))
	}
	return strings.Join(out, "\n"), problems
}

// An address without encryption, or that is none, is refused.
func TestAddresses(t *testing.T) {
	for word, want := range map[string]string{
		"node1":                "node1 https://node1:9411/ node1",
		"node1:9999":           "node1:9999 https://node1:9999/ node1",
		"https://node1/":       "node1 https://node1:9411/ node1",
		"[::1]:9411":           "::1 https://[::1]:9411/ ::1",
		"http://127.0.0.1:80":  "127.0.0.1:80 http://127.0.0.1:80/ 127.0.0.1",
		"http://10.0.0.1:80":   "", // not of this machine
		"http://localhost:80":  "", // a name can lead elsewhere
		"dns+http://127.0.0.1": "",
		"node1/path":           "", "user@node1": "", "node1:0": "", "node1:http": "", "": "", "node\x1b1": "", "dnssrv+": "", "dnssrv+a:9411": "",
	} {
		l, err := fleet.NewList([]string{word})
		if want == "" {
			expect.True(t, err != nil, word, "is accepted")
			continue
		}
		expect.OK(t, err, word)
		got, problems := targets(t, l)
		expect.True(t, got == want && len(problems) == 0, word, got, problems)
	}
}

// The list is read again each time. What cannot be read does not remove machines, and is said.
func TestListChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	write := func(text string) { expect.OK(t, os.WriteFile(path, []byte(text), 0o600)) }
	write("# the machines\nnode10\nnode2 /etc/token2 # has its own\n\nnode2\n")
	l, err := fleet.NewList([]string{"@" + path})
	expect.OK(t, err)
	both := "node10 https://node10:9411/ node10\nnode2 https://node2:9411/ node2 /etc/token2"
	got, problems := targets(t, l)
	expect.True(t, got == both && len(problems) == 0, got, problems)
	expect.OK(t, os.Remove(path))
	got, problems = targets(t, l)
	expect.True(t, got == both && len(problems) == 1, "without the file", got, problems)
	write("node10\nhttp://node3\n")
	got, problems = targets(t, l)
	expect.True(t, got == "node10 https://node10:9411/ node10" && len(problems) == 1 && strings.Contains(problems[0].Error(), "line 2"), got, problems)
}

// Every address of a name is a machine, with the certificate of that name. A failure of DNS removes none.
func TestDNS(t *testing.T) {
	l, err := fleet.NewList([]string{"dns+gpus.example:9999", "dnssrv+_ration._tcp.example"})
	expect.OK(t, err)
	addresses := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	var failed error
	l.SetDNS(func(name string) ([]netip.Addr, error) {
		expect.Equal(t, name, "gpus.example")
		return addresses, failed
	},
		func(name string) ([]*net.SRV, error) {
			expect.Equal(t, name, "_ration._tcp.example")
			return []*net.SRV{{Target: "a.example.", Port: 9411}, {Target: "b.example.", Port: 80}}, failed
		})
	want := "192.0.2.1:9999 https://192.0.2.1:9999/ gpus.example\n[2001:db8::1]:9999 https://[2001:db8::1]:9999/ gpus.example\na.example https://a.example:9411/ a.example\nb.example:80 https://b.example:80/ b.example"
	got, problems := targets(t, l)
	expect.True(t, got == want && len(problems) == 0, got, problems)
	failed = errors.New("no such host")
	got, problems = targets(t, l)
	expect.True(t, got == want && len(problems) == 2, "while DNS fails", got, problems)
	failed, addresses = nil, addresses[:1]
	got, problems = targets(t, l)
	expect.True(t, !strings.Contains(got, "2001") && strings.Contains(got, "192.0.2.1") && len(problems) == 0, got, problems)
}

// A token that every user can read is none.
func TestToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	for text, ok := range map[string]bool{"0123456789abcdef\n": true, "  0123456789abcdef  \nmore": true, "short\n": false, "": false, "two words of some length\n": false, "0123456789abcde\x00f": false} {
		expect.OK(t, os.WriteFile(path, []byte(text), 0o600))
		token, err := fleet.ReadToken(path)
		expect.True(t, (err == nil) == ok && (!ok || token == "0123456789abcdef"), text, token, err)
	}
	expect.OK(t, errors.Join(os.WriteFile(path, []byte("0123456789abcdef"), 0o600), os.Chmod(path, 0o604)))
	_, err := fleet.ReadToken(path)
	expect.True(t, err != nil && strings.Contains(err.Error(), "chmod"), err)
}

func TestCompare(t *testing.T) {
	names := []string{"a", "a1", "a2", "a10", "a10b", "b", "node-2-1", "node-2-10", "node-10-1"}
	for i := range names {
		for j := range names {
			got, want := fleet.Compare(names[i], names[j]), i-j
			expect.True(t, got < 0 && want < 0 || got > 0 && want > 0 || got == 0 && want == 0, names[i], names[j], got)
		}
	}
	expect.True(t, fleet.Compare("a01", "a1") != 0, "two names are the same")
}
