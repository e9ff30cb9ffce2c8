package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/kube/claim"
	"ration/machine"
)

// A claim is unprepared also where its record was lost: the kubelet asks once, and what is left would be there until the
// plugin's next start. One of which there is nothing is unprepared.
func TestUnprepareWithoutRecord(t *testing.T) {
	n := newNode(t)
	for range 2 {
		_, err := n.Prepare(n.plan(uid, gib))
		expect.OK(t, err)
		expect.OK(t, os.RemoveAll(n.State))
		expect.OK(t, errors.Join(n.Unprepare(uid), n.Unprepare(uid), n.Unprepare(other)))
		checkNothingLeft(t, n)
	}
}

// Where the state cannot be written, a claim is not prepared and the error says why; when it can, it is. Nothing of it is left.
func TestStateThatCannotBeWritten(t *testing.T) {
	for name, tt := range map[string]struct {
		options string
		want    string
	}{
		"full":             {"size=4k,nr_inodes=2", "no space left on device"}, // room for the lock alone
		"full later":       {"size=4k,nr_inodes=3", "no space left on device"}, // and for the record
		"for reading only": {"ro", "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			state := func(options string) {
				t.Helper()
				if err := unix.Mount("test", n.State, "tmpfs", 0, strings.TrimPrefix(options, "ro")); err != nil {
					t.Skipf("mounting a file system: %v", err)
				}
				if options == "ro" {
					expect.OK(t, unix.Mount("", n.State, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
				}
			}
			expect.OK(t, os.MkdirAll(n.State, 0o700))
			state(tt.options)
			if strings.HasSuffix(name, "later") { // the spec does not fit, as it is beside the record
				n.CDI = n.State
			}
			_, err := n.Prepare(n.plan(uid, gib))
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want), err, tt.want)
			if _, err := os.Stat(n.specFile(uid)); err == nil {
				t.Error("a container could be started")
			}
			if tt.options != "ro" {
				expect.Equal(t, n.Unprepare(uid), nil) // the pod is deleted: that needs no room
				checkNothingLeft(t, n)
			}
			expect.OK(t, unix.Unmount(n.State, 0))
			_, err = n.Prepare(n.plan(uid, gib))
			expect.Equal(t, err, nil)
			expect.Equal(t, n.Unprepare(uid), nil)
			checkNothingLeft(t, n)
		})
	}
}

// Records that are no records, whatever they are, are no claims: the same claim can be prepared, and unprepared, and others too.
func TestCorruptRecords(t *testing.T) {
	n := newNode(t)
	_, err := n.Prepare(n.plan(uid, gib))
	expect.OK(t, err)
	good, err := os.ReadFile(n.recordFile(uid))
	expect.OK(t, err)
	for name, text := range map[string]string{
		"empty": "", "no JSON": "\x00\x00\x00", "another type": "[]", "null": "null", "another version": strings.Replace(string(good), `"version":1`, `"version":2`, 1),
		"another claim's": strings.ReplaceAll(string(good), uid, other), "two": string(good) + string(good), "half": string(good[:len(good)/2]),
	} {
		t.Run(name, func(t *testing.T) {
			write := func() {
				t.Helper()
				expect.OK(t, os.WriteFile(n.recordFile(uid), []byte(text), 0o600))
			}
			write()
			_, err := n.Prepare(n.plan(other, gib))
			expect.Equal(t, err, nil, "another claim")
			_, err = n.Prepare(n.plan(uid, gib))
			expect.Equal(t, err, nil)
			r, err := n.Record(uid)
			expect.True(t, err == nil && r.Plan.UID == uid, "the record is", r, err)
			write()
			expect.Equal(t, errors.Join(n.Unprepare(uid), n.Unprepare(other)), nil)
			checkNothingLeft(t, n)
		})
	}
}

// A record that cannot be read may describe jobs that are in use: its claim is neither prepared again nor unprepared, and keeps its job and
// its spec.
func TestRecordThatCannotBeRead(t *testing.T) {
	n := newNode(t)
	_, err := n.Prepare(n.plan(uid, gib))
	expect.OK(t, err)
	kept := n.recordFile(uid) + ".kept"
	expect.OK(t, errors.Join(os.Rename(n.recordFile(uid), kept), os.Mkdir(n.recordFile(uid), 0o700)))
	for range 2 {
		_, err = n.Prepare(n.plan(uid, gib))
		expect.True(t, errors.Is(err, unix.EISDIR), "preparing returns", err)
		expect.True(t, errors.Is(n.Unprepare(uid), unix.EISDIR), "it is unprepared")
		jobs, err := jobsOf(uid)
		_, spec := os.Stat(n.specFile(uid))
		expect.True(t, len(jobs) == 1 && err == nil && spec == nil, "there are the jobs", jobs, err, "and the spec", spec)
	}
	expect.OK(t, errors.Join(os.Remove(n.recordFile(uid)), os.Rename(kept, n.recordFile(uid)), n.Unprepare(uid)))
	checkNothingLeft(t, n)
}

// Several plugins, as in an update, with several calls each, for the same claims at once: each call succeeds, and afterwards there is what
// the last calls wanted.
func TestAtOnce(t *testing.T) {
	n := newNode(t)
	base := filepath.Dir(n.State)
	plugins := []*Node{nodeAt(t, base), nodeAt(t, base)}
	run := func(work func(n *Node, i int) error) {
		t.Helper()
		const calls = 4
		errs := make(chan error, len(plugins)*calls)
		for _, own := range plugins {
			for i := range calls {
				go func() { errs <- work(own, i) }()
			}
		}
		for range len(plugins) * calls {
			expect.Equal(t, <-errs, nil)
		}
	}
	uids := []string{uid, other}
	plan := func(i int) claim.Plan {
		p := n.plan(uids[i%2], gib)
		p.Rations[0].Shares[0].Compute = 0
		return p
	}
	prepare := func(n *Node, i int) error { _, err := n.Prepare(plan(i)); return err }
	unprepare := func(n *Node, i int) error { return n.Unprepare(uids[i%2]) }
	run(prepare)
	if records, err := n.Records(); err != nil || len(records) != 2 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for _, id := range uids {
		n.readSpec(t, id)
		j, err := machine.ReadJob(JobPrefix + id)
		expect.True(t, err == nil && j.Devices[0].Limit == gib, j, err)
	}
	run(func(n *Node, i int) error {
		if i >= 2 {
			return unprepare(n, i)
		}
		return prepare(n, i)
	})
	run(unprepare)
	checkNothingLeft(t, n)
}
