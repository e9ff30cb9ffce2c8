package proc

import (
	"os"
	"strings"
	"testing"
)

// All UIDs of a range are one account, those of another range another, and nobody else's is touched by
// either, nor by lines that are none.
func TestLent(t *testing.T) {
	ranges := parseLent(strings.NewReader("anna:100000:65536\n# no line\nbob:x:3\nbob:-5:3\nbob:7\n1001:165536:2 \neve:300000:0\n\n"))
	for uid, want := range map[int]string{99999: "", 100000: "anna", 165535: "anna", 165536: "1001", 165537: "1001", 165538: "", 300000: "", -1: "", 0: ""} {
		r, line, is := findLent(ranges, uid)
		if is != (want != "") || r.owner != want {
			t.Errorf("%d is lent to %q", uid, r.owner)
		}
		if is && (line == 0) != (want == "anna") {
			t.Errorf("%d is of range %d", uid, line)
		}
	}
}

// What is not lent is an account of its own.
func TestAccount(t *testing.T) {
	text, _ := os.ReadFile(lentFile)
	ranges := parseLent(strings.NewReader(string(text)))
	for _, uid := range []int{-1, 0, 1, 1000, 65534, 100000, 1 << 30} {
		_, line, is := findLent(ranges, uid)
		want := uid
		if is {
			want = -2 - line
		}
		if got := Account(uid); got != want {
			t.Errorf("%d counts as %d, want %d", uid, got, want)
		}
	}
}
