package proc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
)

// All UIDs of a range have one owner. Other UIDs have none, and invalid lines are skipped.
func TestSubUIDs(t *testing.T) {
	ranges := parseSubUIDs(strings.NewReader("anna:100000:65536\n# no line\nbob:x:3\nbob:-5:3\nbob:7\n1001:165536:2 \neve:300000:0\n\n"))
	for uid, want := range map[int]string{99999: "", 100000: "anna", 165535: "anna", 165536: "1001", 165537: "1001", 165538: "", 300000: "", -1: "", 0: ""} {
		r, is := findSubUID(ranges, uid)
		expect.True(t, is == (want != "") && r.owner == want, uid, "belongs to", r.owner)
	}
}

// All ranges of a user count as that user. Those of a user that is not in /etc/passwd count together, and so do
// root's: as root they would have no bounds.
func TestCountRanges(t *testing.T) {
	was := passwd
	defer func() { passwd = was }()
	passwd = filepath.Join(t.TempDir(), "passwd")
	expect.OK(t, os.WriteFile(passwd, []byte("root:x:0:0::/:\nanna:x:4001:4001::/:\n"), 0o644))
	ranges := parseSubUIDs(strings.NewReader("anna:100000:10\nroot:200000:10\n4002:300000:10\nfar:400000:10\nanna:500000:10\nfar:600000:10\n0:700000:10\n4001:800000:10\n"))
	countRanges(ranges)
	for i, want := range []int{4001, -3, 4002, -5, 4001, -5, -8, 4001} {
		expect.Equal(t, ranges[i].account, want, ranges[i])
	}
}

// A UID outside all ranges is an account of its own.
func TestAccount(t *testing.T) {
	text, _ := os.ReadFile(subUIDFile)
	ranges := parseSubUIDs(strings.NewReader(string(text)))
	countRanges(ranges)
	for _, uid := range []int{-1, 0, 1, 1000, 65534, 100000, 1 << 30} {
		want := uid
		if r, is := findSubUID(ranges, uid); is {
			want = r.account
		}
		expect.Equal(t, Account(uid), want, uid, "counts as")
	}
}
