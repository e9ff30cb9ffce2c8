package region

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
)

// A job sleeps: its ledger is empty, its accounts show what they did, an owner's change waits, and a wake charges all of
// it again, also after a process died in the middle of either.
func TestSleepMovesBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	r, err := Open(path, Options{Limits: Limits{Memory: [abi.Devices]abi.Limit{abi.MakeLimit(100 * MiB)}}})
	expect.OK(t, err)
	defer r.Close()
	s, err := r.Claim("sleeper")
	expect.OK(t, err)
	expect.OK(t, s.Charge(0, abi.Data, 60*MiB))
	expect.OK(t, s.Charge(1, abi.Data, 5*MiB))
	unlock, err := r.LockSleep(0)
	expect.OK(t, err)
	_, err = r.LockSleep(10 * time.Millisecond)
	expect.True(t, errors.Is(err, ErrSleepBusy), "the sleep lock was taken twice:", err)

	expect.OK(t, r.SetSleep(abi.Falling, false))
	all, err := r.Sleepers()
	expect.OK(t, err)
	expect.Must(t, len(all) == 1 && all[0].Shown[0] == 60*MiB && all[0].Booked[1] == 5*MiB, "sleepers", all)
	quiet, err := r.Quiet(&all[0])
	expect.True(t, err == nil && quiet, "quiet", quiet, err)

	before, err := r.Wanted()
	expect.OK(t, err)
	charged := make(chan error)
	go func() { charged <- s.Charge(0, abi.Data, MiB) }()
	expect.OK(t, r.WaitWanted(before, 20*time.Second))
	now, err := r.Wanted()
	expect.True(t, err == nil && now != before, "no thread has asked for the job to be woken", err)
	quiet, _ = r.Quiet(&all[0])
	expect.True(t, quiet, "a thread that waits has a turn")

	expect.OK(t, r.SetSleep(abi.Asleep, false))
	for range 2 { // it is idempotent
		expect.OK(t, r.PutAside(&all[0]))
	}
	expect.True(t, r.Used(0) == 0 && r.Used(1) == 0, "asleep it has", r.Used(0), r.Used(1))
	h, err := r.Holdings(0, nil)
	expect.True(t, err == nil && len(h) == 1 && h[0].Total == 0 && h[0].Aside == 60*MiB, "asleep it shows", h, err)

	// What it has put aside does not go back to the job if it dies now.
	r.record(r.describe(all[0].Slot, all[0].status, abi.CauseEnded))
	deaths, err := r.Deaths()
	expect.True(t, err == nil && len(deaths) == 1 && deaths[0].Asleep && deaths[0].Held[0] == 60*MiB && deaths[0].Noticed() == causes[abi.CauseEnded], deaths, err)

	// A process that had the lock died after it had announced a part of the charge.
	expect.OK(t, r.SetSleep(abi.Waking, false))
	owner := Slot{r: r, index: all[0].Slot, status: all[0].status}
	owner.announce(&r.m.Accounts[0][all[0].Slot], 60*MiB/abi.Unit)
	expect.OK(t, r.SetLimit(0, abi.MakeLimit(59*MiB)))
	err = r.TakeBack(&all[0])
	expect.True(t, errors.Is(err, ErrRefused), "more than the limit was charged:", err)
	expect.OK(t, r.SetLimit(0, abi.MakeLimit(61*MiB)))
	for range 2 {
		expect.OK(t, r.TakeBack(&all[0]))
	}
	expect.True(t, r.Used(0) == 60*MiB && r.Used(1) == 5*MiB, "awake it has", r.Used(0), r.Used(1))
	expect.OK(t, r.SetSleep(abi.Awake, false))
	unlock()
	expect.OK(t, <-charged)
	expect.Equal(t, r.Used(0), 61*MiB, "after the charge that waited")
	r.record(r.describe(all[0].Slot, all[0].status, abi.CauseEnded))
	deaths, err = r.Deaths()
	expect.True(t, err == nil && !deaths[0].Asleep && deaths[0].Held[0] == 61*MiB, deaths, err)
	expect.OK(t, s.Leave())
	expect.Equal(t, r.Used(0), 0, "after the end")
}
