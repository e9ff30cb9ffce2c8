package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
)

// Which job sleeps for a user that waits: the one that has been unused longest, if it is needed.
func TestLongestUnused(t *testing.T) {
	process := func(uid int, since int64) *idleProcess {
		p := &idleProcess{idleJob: idleJob{uid: uid}}
		p.unused.Store(since)
		return p
	}
	all := []*idleProcess{process(1, 30), process(2, 10), process(3, 20)}
	for _, c := range []struct {
		what   string
		enough func(uids []int) bool
		uid    int
	}{
		{"any one is enough", func(uids []int) bool { return len(uids) > 0 }, 2},
		{"two are needed", func(uids []int) bool { return len(uids) > 1 }, 2},
		{"only the last used one is enough", func(uids []int) bool { return slices.Contains(uids, 1) }, 1},
		{"all are not enough", func(uids []int) bool { return len(uids) > 3 }, 0},
		{"there is room already", func([]int) bool { return true }, 0},
	} {
		got := 0
		if p := longestUnused(slices.Clone(all), c.enough); p != nil {
			got = p.uid
		}
		expect.Equal(t, got, c.uid, c.what)
	}
	expect.True(t, longestUnused(nil, func([]int) bool { return false }) == nil, "without jobs")
}

// What a user's process writes counts if it is a time, and no more is read of it than it may write.
func TestReports(t *testing.T) {
	p := &idleProcess{}
	report := ReportUnused(p)
	report(time.Unix(0, 12))
	expect.Equal(t, p.unused.Load(), 12)
	report(time.Time{})
	expect.Equal(t, p.unused.Load(), 0)
	for _, c := range []struct {
		text string
		is   int64
	}{{"17\n", 17}, {"3\n4\n", 4}, {"soon\n", 0}, {"-5\n", 0}, {"9\n", 9}} {
		_, err := p.Write([]byte(c.text))
		expect.OK(t, err)
		expect.Equal(t, p.unused.Load(), c.is, c.text)
	}
	_, err := p.Write([]byte(strings.Repeat(fmt.Sprintln(8), maxReport)))
	expect.True(t, err != nil && p.unused.Load() == 9, "it reads on", err, p.unused.Load())
}
