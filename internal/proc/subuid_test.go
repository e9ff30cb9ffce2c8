package proc

import (
	"os"
	"strings"
	"testing"

	"ration/check/expect"
)

// All UIDs of a range have one owner and one line. Other UIDs have none, and invalid lines are skipped.
func TestSubUIDs(t *testing.T) {
	ranges := parseSubUIDs(strings.NewReader("anna:100000:65536\n# no line\nbob:x:3\nbob:-5:3\nbob:7\n1001:165536:2 \neve:300000:0\n\n"))
	for uid, want := range map[int]string{99999: "", 100000: "anna", 165535: "anna", 165536: "1001", 165537: "1001", 165538: "", 300000: "", -1: "", 0: ""} {
		r, line, is := findSubUID(ranges, uid)
		expect.True(t, is == (want != "") && r.owner == want, uid, "belongs to", r.owner)
		expect.True(t, !is || (line == 0) == (want == "anna"), uid, "is of range", line)
	}
}

// A UID outside all ranges is an account of its own.
func TestAccount(t *testing.T) {
	text, _ := os.ReadFile(subUIDFile)
	ranges := parseSubUIDs(strings.NewReader(string(text)))
	for _, uid := range []int{-1, 0, 1, 1000, 65534, 100000, 1 << 30} {
		_, line, is := findSubUID(ranges, uid)
		want := uid
		if is {
			want = -2 - line
		}
		expect.Equal(t, Account(uid), want, uid, "counts as")
	}
}
