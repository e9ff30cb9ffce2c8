package region

import (
	"runtime/debug"
	"sync/atomic"
	"time"

	"ration/internal/abi"
)

// Death is a process that ended without leaving, and whose memory another process returned.
type Death struct {
	Time    int64 // when it was noticed, in Unix nanoseconds
	Slot    int
	PID     int // in its own PID namespace
	HostPID int // 0 if unknown
	Name    string
	Joined  int64 // Unix nanoseconds
	Reaper  int   // PID of the process that noticed it, in its own PID namespace
	Cause   int   // one of abi's constants from CauseUnknown
	Asleep  bool  // Held had been put aside into host memory, because the job slept
	Held    [abi.Devices]uint64
}

// causes are texts that tell how a death was noticed, by cause.
var causes = [...]string{
	abi.CauseUnknown:  "condemned by a process that died",
	abi.CauseUnseen:   "its lock was gone, and its PID meant nothing to the process that noticed it",
	abi.CauseExec:     "it became another program",
	abi.CauseEnded:    "no process has its PID",
	abi.CauseReused:   "its PID is another process's",
	abi.CauseZombie:   "it is a zombie",
	abi.CauseUnmapped: "it no longer maps the region",
	abi.CauseJoining:  "it died while it joined",
}

// Noticed returns how the death was noticed.
func (d *Death) Noticed() string {
	if uint(d.Cause) >= uint(len(causes)) {
		return "noticed in a way that this program does not know"
	}
	return causes[d.Cause]
}

// describe returns what is known of a dead process. Its slot and its accounts still describe it
// until the slot is freed; reaping does not change them.
func (r *Region) describe(slot int, st abi.Status, cause int) abi.Death {
	e := &r.m.Slots[slot]
	d := abi.Death{
		Time: uint64(time.Now().UnixNano()), Slot: uint32(slot), Cause: uint32(cause), PID: atomic.LoadUint64(&e.PID),
		HostPID: atomic.LoadUint64(&e.HostPID), Joined: atomic.LoadUint64(&e.Joined), Reaper: uint64(self().pid),
	}
	if abi.Sleep(atomic.LoadUint64(&r.m.Header.Sleep)).State() == abi.Asleep {
		d.Cause |= abi.CauseAsleep
	}
	copy(d.Name[:], loadName(e))
	for i := range d.Held {
		var f abi.Usage
		read(&r.m.Accounts[i][slot], st.Gen(), &f)
		d.Held[i] = f.Total
	}
	return d
}

// record writes a death into the ring.
func (r *Region) record(d abi.Death) {
	ticket := atomic.AddUint64(&r.m.Header.DeathNext, 1) - 1
	point(abi.DeathTicket)
	writeEntry(deathWords(&r.m.Deaths[ticket%abi.Deaths])[:], deathWords(&d)[:], ticket)
	point(abi.DeathWritten)
}

// Deaths returns the latest deaths, newest first.
func (r *Region) Deaths() (out []Death, err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return nil, err
	}
	next := atomic.LoadUint64(&r.m.Header.DeathNext)
	for back := uint64(1); back <= min(next, abi.Deaths); back++ {
		var e abi.Death
		if !readEntry(deathWords(&r.m.Deaths[(next-back)%abi.Deaths])[:], deathWords(&e)[:], next-back) {
			continue
		}
		for i := range e.Held {
			e.Held[i] = possible(e.Held[i], maxBytes)
		}
		out = append(out, Death{
			Time: timeOf(e.Time), Slot: int(e.Slot), PID: pidOf(e.PID), HostPID: pidOf(uint64(abi.HostPID(e.HostPID).PID())),
			Name: printable(e.Name[:]), Joined: timeOf(e.Joined), Reaper: pidOf(e.Reaper), Cause: int(e.Cause &^ abi.CauseAsleep), Asleep: e.Cause >= abi.CauseAsleep && e.Cause < abi.CauseAsleep+uint32(len(causes)), Held: e.Held,
		})
	}
	return out, r.whole()
}
