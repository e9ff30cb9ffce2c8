package job

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
)

// The service is up if it listens, and nothing is said of it without a policy.
func TestPolicyUp(t *testing.T) {
	file, socket := filepath.Join(t.TempDir(), "in-force"), filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	expect.OK(t, err)
	expect.True(t, policyUp(file, socket) == nil, "no policy is in force")
	expect.OK(t, os.WriteFile(file, nil, 0o644))
	up := policyUp(file, socket)
	expect.True(t, up != nil && *up, "it listens")
	expect.OK(t, l.Close())
	up = policyUp(file, socket)
	expect.True(t, up != nil && !*up, "it does not listen any more")
}

func TestOverbooks(t *testing.T) {
	for text, want := range map[string]bool{
		"# missing: closed\noverbook = true # as agreed\n[everybody]\nmemory = \"8g\"\n": true,
		"# missing: closed\n \"overbook\"=true\n":                                        true,
		"# missing: closed\noverbook = false\n":                                          false,
		"# missing: closed\n# overbook = true\n":                                         false,
		"# missing: closed\n":                                                            false,
	} {
		expect.Equal(t, overbooks().MatchString(text), want, text)
	}
}
