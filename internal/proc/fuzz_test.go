package proc

import (
	"testing"

	"ration/check/expect"
)

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte("Name:\ta\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t4711\t1\n"))
	f.Add([]byte("Name:\tUid:\\n\nUid:\t-1\t"))
	f.Add([]byte("\nUid:\t1\t\nNSpid:\t\n"))
	f.Add([]byte("\nUid:\t99999999999999999999\t"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) { _, _, _ = parseStatus(b) })
}

func TestParseStatus(t *testing.T) {
	for _, c := range []struct {
		status   string
		uid, own int
		bad      bool
	}{
		{"Name:\ta\nUid:\t1000\t0\t0\t0\nNSpid:\t4711\t1\n", 1000, 1, false},
		{"Name:\ta\nUid:\t1000\t0\t0\t0\nNSpid:\t4711\n", 1000, 4711, false},
		{"Name:\ta\nUid:\t1000\t0\t0\t0\n", 1000, 0, false}, // a kernel before 4.1
		{"Name:\ta\n", 0, 0, true},
		{"", 0, 0, true},
	} {
		uid, own, err := parseStatus([]byte(c.status))
		expect.True(t, uid == c.uid && own == c.own && (err != nil) == c.bad, c.status, uid, own, err)
	}
}
