package region

import (
	"errors"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// What a death at each step of a change leaves, written down word by word, and
// what reaping must make of it. Slot 1 is the dead one and held 5 units in
// change 7; slot 0 lives and holds 3.
func TestDeathAtEachStep(t *testing.T) {
	const dead, alive, before = 1, 0, 5
	for _, c := range []struct {
		name  string
		delta int64
		word  abi.LedgerWord // as found
		used  abi.Used
		done  uint64
	}{
		{"charge announced", 4, abi.MakeLedgerWord(8, alive, 9), abi.MakeUsed(7, before), 7},
		{"charge announced, word still shows the change before", 4, abi.MakeLedgerWord(8, dead, 7), abi.MakeUsed(7, before), 6},
		{"charge applied", 4, abi.MakeLedgerWord(12, dead, 8), abi.MakeUsed(7, before), 7},
		{"charge applied and overwritten", 4, abi.MakeLedgerWord(12, alive, 9), abi.MakeUsed(7, before), 8},
		{"charge booked", 4, abi.MakeLedgerWord(12, dead, 8), abi.MakeUsed(8, before+4), 7},
		{"return announced", -2, abi.MakeLedgerWord(8, alive, 9), abi.MakeUsed(7, before), 7},
		{"return applied", -2, abi.MakeLedgerWord(6, dead, 8), abi.MakeUsed(7, before), 7},
		{"return applied and overwritten", -2, abi.MakeLedgerWord(6, alive, 9), abi.MakeUsed(7, before), 8},
		{"return booked", -2, abi.MakeLedgerWord(6, alive, 9), abi.MakeUsed(8, before-2), 8},
		{"return of everything booked", -5, abi.MakeLedgerWord(3, dead, 8), abi.MakeUsed(8, 0), 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, m := overHeap(t)
			claimed := [2]*Slot{claim(t, r), claim(t, r)}
			l := r.ledger(0)
			l.device.LedgerWord = uint64(c.word)
			l.accounts[alive].Used = uint64(abi.MakeUsed(9, 3))
			l.accounts[alive].Pend = uint64(abi.MakePend(9, 1))
			l.accounts[dead].Pend = uint64(abi.MakePend(8, c.delta))
			l.accounts[dead].Used = uint64(c.used)
			l.accounts[dead].Done = c.done

			m.kill(claimed[dead].Index())
			n, err := r.Reap()
			expect.Must(t, n == 1 && err == nil, "reaped", n, err)
			got := r.Used(0)
			expect.True(t, got == 3*abi.Unit, got/abi.Unit, "units are granted after reaping, the living hold 3")
			booksAgree(t, r, 0)
			n, err = r.Reap()
			expect.True(t, n == 0 && err == nil, "reaping again", n, err)
		})
	}
}

// A slot whose words cannot be true is put out of use, once, and is no error for
// processes that need what others hold.
func TestAnImpossibleAccountIsNoErrorForOthers(t *testing.T) {
	for name, spoil := range map[string]func(a *abi.Account){
		"more than was granted": func(a *abi.Account) { a.Used = uint64(abi.MakeUsed(9, 1<<30)); a.Pend = uint64(abi.MakePend(9, 1)) },
		"less than nothing": func(a *abi.Account) {
			a.Pend = uint64(abi.MakePend(8, -100))
			a.Done = 8
			a.Used = uint64(abi.MakeUsed(7, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, m := overHeap(t)
			broken, dead, s := claim(t, r), claim(t, r), claim(t, r)
			r.m.Limits.Device[0].Memory = uint64(abi.MakeLimit(10 * MiB))
			must(t, broken.Charge(1, abi.Data, MiB))
			must(t, dead.Charge(0, abi.Data, 10*MiB))
			spoil(&r.m.Accounts[0][broken.Index()])
			m.kill(broken.Index())
			m.kill(dead.Index())
			must(t, s.Charge(0, abi.Data, 10*MiB))
			var refused *RefusedError
			if err := s.Charge(0, abi.Data, 1); !errors.As(err, &refused) {
				t.Errorf("a byte beyond the limit: %v", err)
			}
			for range 2 {
				_, err := r.Reap()
				expect.Equal(t, err, nil, "reaping")
			}
			c, err := r.Counters()
			expect.True(t, c.Damaged == 1 && c.Reaped == 1 && err == nil, c.Damaged, "damaged", c.Reaped, "reaped", err)
			expect.True(t, r.Used(0) == 10*MiB && r.Used(1) == 0, r.Used(0), "and", r.Used(1), "bytes granted")
			ps, err := r.Processes()
			expect.True(t, len(ps) == 1 && err == nil, "processes", ps, err)
			must(t, s.Return(0, abi.Data, 10*MiB))
		})
	}
}

// A phase that a dead owner left odd, or that somebody scribbled, stops no process,
// and readers find the figures after the next change.
func TestADamagedPhaseStopsNobody(t *testing.T) {
	r, _ := overHeap(t)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Data, abi.Unit))
	for _, phase := range []uint64{abi.PhaseB, abi.PhaseA, 2, 1<<64 - 1, 400 + abi.PhaseA} {
		r.m.Accounts[0][s.Index()].Phase = phase
		must(t, s.Charge(0, abi.Data, abi.Unit))
		must(t, s.Return(0, abi.Data, abi.Unit))
		if h, err := r.Holdings(0, nil); err != nil || len(h) != 1 || h[0].Total != abi.Unit || h[0].BestEffort {
			t.Errorf("phase %#x: %+v, %v", phase, h, err)
		}
	}
	must(t, s.Leave())
}

// What a process that was taken for dead writes into the figures of the slot's next
// owner lasts until that one's next change.
func TestFiguresHeal(t *testing.T) {
	r, _ := overHeap(t)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Data, 2*MiB))
	must(t, s.Charge(0, abi.Module, MiB))
	a := &r.m.Accounts[0][s.Index()]
	a.Phase, a.Gen, a.Peak = abi.PhaseA, 0, 77
	a.A, a.B = abi.Usage{Total: 5, Kind: [abi.Kinds]uint64{1, 2, 3, 4}}, abi.Usage{}
	must(t, s.Return(0, abi.Data, MiB))
	h, err := r.Holdings(0, nil)
	want := Holding{Slot: s.Index(), Total: 2 * MiB, Kind: [abi.Kinds]uint64{abi.Module: MiB, abi.Data: MiB}, Peak: 3 * MiB}
	expect.True(t, err == nil && len(h) == 1 && h[0] == want && a.A == a.B, h, err)
}

// The sequences are short and wrap: neither does a charge stop nor a death become
// undecidable when they do.
func TestSequencesWrap(t *testing.T) {
	for _, seq := range []uint64{1<<abi.WordSeqBits - 2, 1<<abi.SeqBits - 2} {
		r, m := overHeap(t)
		a, b := claim(t, r), claim(t, r)
		acc := &r.m.Accounts[0][a.Index()]
		acc.Pend, acc.Used = uint64(abi.MakePend(seq, 1)), uint64(abi.MakeUsed(seq, 0))
		for range 4 {
			must(t, a.Charge(0, abi.Data, MiB))
			must(t, b.Charge(0, abi.Data, MiB))
		}
		m.kill(a.Index())
		n, err := r.Reap()
		expect.Must(t, n == 1 && err == nil, "reaped", n, err)
		if got := r.Used(0); got != 4*MiB {
			t.Errorf("from %#x: %d bytes granted", seq, got)
		}
		booksAgree(t, r, 0)
	}
}

// An owner alone for a long time keeps Done near its own sequence.
func TestOwnerRefreshesDone(t *testing.T) {
	r, _ := overHeap(t)
	s := claim(t, r)
	for range abi.DoneRefresh {
		must(t, s.Charge(0, abi.Data, 1))
		must(t, s.Return(0, abi.Data, 1))
	}
	expect.Equal(t, r.m.Accounts[0][s.Index()].Done, 2*abi.DoneRefresh, "done", "after", "changes")
}

// What a death inside the view leaves: readers see the figures before or after,
// never between, and the next owner starts even and at zero.
func TestDeathInsideTheView(t *testing.T) {
	whole := func(total uint64) abi.Usage {
		return abi.Usage{Total: total, Kind: [abi.Kinds]uint64{abi.Data: total}}
	}
	torn := abi.Usage{Total: 512, Kind: [abi.Kinds]uint64{abi.Data: 9999}}
	for _, c := range []struct {
		name string
		a    abi.Account
		want uint64
	}{
		{"turn taken", abi.Account{Phase: 4 + abi.PhaseB, A: whole(512), B: whole(0)}, 512},
		{"B half written", abi.Account{Phase: 4 + abi.PhaseB, A: whole(512), B: torn}, 512},
		{"turned", abi.Account{Phase: 4 + abi.PhaseA, A: whole(512), B: whole(1024)}, 1024},
		{"A half written", abi.Account{Phase: 4 + abi.PhaseA, A: torn, B: whole(1024)}, 1024},
	} {
		var f abi.Usage
		c.a.Gen = 1
		n, _ := read(&c.a, 1, &f)
		expect.True(t, n == 0 && f == whole(c.want), c.name, "read", f, "after", n, "retries")
		n, _ = read(&c.a, 2, &f)
		expect.True(t, n == 0 && f == (abi.Usage{}), c.name, "before the next owner's first change it is read as", f)
		new(turn).enter(&c.a, 2)
		n, _ = read(&c.a, 2, &f)
		expect.True(t, n == 0 && f == (abi.Usage{}) && c.a.Phase == 12, c.name, "the next owner begins with", f, "phase", c.a.Phase)
	}
}
