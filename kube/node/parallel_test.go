package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/job"
	"ration/kube/claim"
)

// Two claims are prepared, and unprepared, at the same time: both reach the middle before either
// ends.
func TestClaimsInParallel(t *testing.T) {
	n := newNode(t)
	var arrived atomic.Int32
	both := make(chan struct{})
	meet := func(at string) func(string) {
		return func(point string) {
			if point != at {
				return
			}
			if arrived.Add(1) == 2 {
				close(both)
			}
			select {
			case <-both:
			case <-time.After(30 * time.Second):
				t.Errorf("%s: the other claim waits", at)
			}
		}
	}
	each := func(work func(uid string) error) {
		var all sync.WaitGroup
		for _, u := range []string{uid, other} {
			all.Go(func() { expect.Equal(t, work(u), nil) })
		}
		all.Wait()
		arrived.Store(0)
		both = make(chan struct{})
	}
	n.Reached = meet(PointJob)
	each(func(uid string) error {
		_, err := n.Prepare(n.plan(uid, gib))
		return err
	})
	n.Reached = meet(PointSpecRemoved)
	each(n.Unprepare)
	n.Reached = nil
}

// Each of several claims that are prepared at the same time has a stand-in machine of its own.
func TestMachinesInParallel(t *testing.T) {
	n := newNode(t)
	var all sync.WaitGroup
	uids := make([]string, 12)
	for i := range uids {
		uids[i] = fmt.Sprintf("%08d%s", i, uid[8:])
		all.Go(func() {
			p := n.plan(uids[i], gib)
			p.Rations[0].Shares[0].Compute = 0
			_, err := n.Prepare(p)
			expect.Equal(t, err, nil)
		})
	}
	all.Wait()
	for _, uid := range uids {
		r, err := n.Record(uid)
		expect.OK(t, err)
		_, err = os.Stat(filepath.Join(os.Getenv("RATION_DIR"), r.Jobs()[0], job.MachineName, "machine"))
		expect.Equal(t, err, nil, "the machine of", uid)
	}
}

// Claims that are booked together are booked one after the other: each beside those before it, and beside the record of one
// that was refused but has one already.
func TestBookedTogether(t *testing.T) {
	n := newNode(t)
	size := n.GPUs[0].Capacity() / 2 / gib * gib
	record := func(i int, memory uint64) *Record {
		p := n.plan(fmt.Sprintf("6b0e6a3c-8d53-4a76-9d0e-%012d", i), memory)
		p.Rations[0].Shares[0].Compute = 0
		return &Record{Plan: p}
	}
	l, err := n.lock(uid)
	expect.OK(t, err)
	defer l.unlock()
	expect.OK(t, n.write(record(0, size)))
	var batch []*booking
	for i, memory := range []uint64{n.GPUs[0].Capacity() + 1, 2 * gib, size, size - 2*gib, 2 * gib} {
		r := record(i, memory)
		batch = append(batch, &booking{record: r, place: func() error { return n.write(r) }})
	}
	n.bookAll(l, batch)
	for i, want := range []bool{false, true, false, true, false} {
		b := batch[i]
		expect.True(t, b.done && (b.err == nil) == want && (want || errors.Is(b.err, ErrOverbooked)), i, b.err)
	}
}

// A burst of claims is prepared as far as the device goes, to the byte. Half of the callers are
// another process' as far as the locks are concerned: they have a Node of their own. Each claim is
// requested twice, and a sweep runs beside them.
func TestBurst(t *testing.T) {
	n := newNode(t)
	next := nodeAt(t, strings.TrimSuffix(n.State, "/state"))
	const claims, fit = 108, 100
	size := n.GPUs[0].Capacity() / fit / gib * gib
	expect.Must(t, size > 0)
	n.GPUs[0].Memory, next.GPUs[0].Memory = fit*size, fit*size
	uidOf := func(i int) string { return fmt.Sprintf("6b0e6a3c-8d53-4a76-9d0e-%012d", i) }
	var all sync.WaitGroup
	var prepared, overbooked atomic.Int32
	for i := range 2 * claims {
		by := n
		if i%2 == 1 {
			by = next
		}
		all.Go(func() {
			p := by.plan(uidOf(i/2), size)
			p.Rations[0].Shares[0].Compute = 0
			_, err := by.Prepare(p)
			switch {
			case err == nil:
				prepared.Add(1)
			case errors.Is(err, ErrOverbooked):
				overbooked.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	_, err := next.Sweep(func(claim.Plan) (bool, error) { return false, nil })
	expect.Equal(t, err, nil)
	all.Wait()
	records, err := n.Records()
	expect.True(t, err == nil && len(records) == fit, len(records), err)
	expect.True(t, prepared.Load() == 2*fit && overbooked.Load() == 2*(claims-fit), prepared.Load(), overbooked.Load())
	for _, r := range records {
		all.Go(func() { expect.Equal(t, n.Unprepare(r.Plan.UID), nil) })
	}
	all.Wait()
	left, err := n.look()
	expect.True(t, err == nil && len(left) == 0, left, err)
}
