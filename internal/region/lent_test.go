package region

import (
	"sync/atomic"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// A dead process's exported memory stays charged while another process of the job lives in its PID
// namespace, and no longer.
func TestLentMemory(t *testing.T) {
	const held, exported = 10 * abi.Unit, 4 * abi.Unit
	for _, c := range []struct {
		name      string
		lock      uint64
		elsewhere bool // the other process is in another PID namespace
		want      uint64
	}{
		{"locked", abi.ExportLockFirst + 7, false, exported},
		{"unknown", abi.ExportLockUnknown, false, exported},
		{"no descriptor", 0, false, 0},
		{"other namespace", abi.ExportLockFirst + 7, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, m := overHeap(t)
			maker, other := claim(t, r), claim(t, r)
			expect.OK(t, maker.Charge(0, abi.Data, held))
			a := &r.m.Accounts[0][maker.Index()]
			atomic.StoreUint64(&a.Exported, exported/abi.Unit)
			atomic.StoreUint64(&a.ExportLock, c.lock)
			holdings, err := r.Holdings(0, nil)
			expect.OK(t, err)
			expect.Equal(t, holdings[0].Exported, uint64(exported), "while it lives")
			if c.elsewhere {
				atomic.StoreUint64(&r.m.Slots[other.Index()].PIDNS, 1)
			}
			m.kill(maker.Index())
			slots, err := r.Reap()
			expect.OK(t, err)
			expect.Equal(t, slots, 1)
			expect.Equal(t, r.Used(0), c.want)
			deaths, err := r.Deaths()
			expect.OK(t, err)
			expect.Equal(t, len(deaths), 1)
			expect.Equal(t, deaths[0].Held[0], uint64(held))
			if c.want == 0 {
				return
			}
			holdings, err = r.Holdings(0, nil)
			expect.OK(t, err)
			expect.Equal(t, holdings[0].Total, c.want)
			expect.Equal(t, holdings[0].Kind[abi.Data], c.want)
			expect.Equal(t, holdings[0].Exported, c.want)
			slots, err = r.Reap() // the other process still lives
			expect.OK(t, err)
			expect.Equal(t, slots, 0)
			expect.Equal(t, r.Used(0), c.want)
			m.kill(other.Index())
			_, err = r.Reap()
			expect.OK(t, err)
			_, err = r.Reap()
			expect.OK(t, err)
			expect.Equal(t, r.Used(0), uint64(0))
			deaths, err = r.Deaths()
			expect.OK(t, err)
			expect.Equal(t, len(deaths), 2) // each once
		})
	}
}

// A new owner of a slot has exported nothing.
func TestExportsOfTheLastOwner(t *testing.T) {
	r, _ := overHeap(t)
	maker := claim(t, r)
	a := &r.m.Accounts[0][maker.Index()]
	must(t, maker.Leave())
	atomic.StoreUint64(&a.Exported, 4)
	atomic.StoreUint64(&a.ExportLock, abi.ExportLockFirst)
	heir := inSlot(t, r, maker.Index())
	must(t, heir.Charge(0, abi.Data, MiB))
	expect.Equal(t, atomic.LoadUint64(&a.ExportLock), uint64(0))
	expect.Equal(t, atomic.LoadUint64(&a.Exported), uint64(0))
}

// What a process claims to have exported is not more than it holds.
func TestExportedClaim(t *testing.T) {
	r, _ := overHeap(t)
	maker := claim(t, r)
	must(t, maker.Charge(0, abi.Data, MiB))
	a := &r.m.Accounts[0][maker.Index()]
	atomic.StoreUint64(&a.Exported, abi.MaxUnits)
	holdings, err := r.Holdings(0, nil)
	expect.OK(t, err)
	expect.Equal(t, holdings[0].Exported, uint64(MiB))
	atomic.StoreUint64(&a.Gen, atomic.LoadUint64(&a.Gen)-1)
	holdings, err = r.Holdings(0, nil)
	expect.OK(t, err)
	expect.Equal(t, holdings[0].Exported, uint64(0), "of the slot's last owner")
}
