package cli

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/job"
)

// hostile ATTACK makes of the job's region what a tenant would who means harm, says that it has,
// by the file state/ready, and waits for the file state/done.
//
//	names    slots with names that move cursors, and numbers that cannot be
//	locks    thousands of locks on the file, hundreds of descriptors of it, and slots with both
//	threads  hundreds of threads, and all slots
//	joins    new processes in all slots, on all devices, again and again
//	ledger   nothing is granted, so that processes get the limit anew
//	account  ledger, and the processes of the first slots hold nothing
//	slot     ledger, and the first slots have no processes
//	uuid     ledger, and device 0 is no device of this machine
//	magic    the file is no region
//	cut      the file is cut short
//
// hostile lease REGION READY takes a lease on a region, says so by the file READY, and keeps it until it is
// ended.
//
// hostile hurry SOCKET READY asks the policy's service for a job and for runs without a pause, and never waits for room. It
// makes the file READY when it was refused for the first time.
//
// hostile ATTACK once does not wait, and makes no file.
func hostile(args []string) int {
	attacks := map[string]func(tenantFile) error{"names": attackNames, "locks": attackLocks, "threads": attackThreads, "joins": attackJoins,
		"ledger": attackLedger, "account": attackAccounts, "slot": attackSlots, "uuid": attackUUID, "magic": attackMagic, "cut": attackCut}
	switch args[0] {
	case "lease":
		return exitWith(attackLease(args[1], args[2]))
	case "hurry":
		return exitWith(attackHurry(args[1], args[2]))
	case "serve":
		return exitWith((&silentFS{device: 3}).serve())
	case "mute":
		return exitWith((&silentFS{device: 3, mute: true}).serve())
	case "silent":
		return exitWith(attackSilent(args[1], args[2], args[3]))
	}
	return exitWith(func() error {
		f, err := os.OpenFile(job.WellKnown+"/region", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := attacks[args[0]](tenantFile{f}); err != nil {
			return err
		}
		if len(args) > 1 {
			return nil
		}
		if err := os.WriteFile("state/ready", nil, 0o666); err != nil {
			return err
		}
		for try := 0; ; try++ {
			if _, err := os.Stat("state/done"); err == nil {
				return nil
			}
			if try > 3000 { // not for ever, if the test is gone
				return errors.New("state/done did not appear")
			}
			if args[0] == "joins" {
				if err := attackJoins(tenantFile{f}); err != nil {
					return err
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}())
}

func attackHurry(socket, ready string) error {
	requests := []string{"", " run x memory=1g", " try x memory=1g"}
	for n := 0; ; n++ {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c, "%d%s\n", os.Getuid(), requests[n%len(requests)])
		answer, err2 := io.ReadAll(c)
		if err := errors.Join(err, err2, c.Close()); err != nil {
			return err
		}
		if strings.HasPrefix(string(answer), "ok") {
			return fmt.Errorf("%q was granted", requests[n%len(requests)])
		}
		if n == len(requests) {
			if err := os.WriteFile(ready, nil, 0o666); err != nil {
				return err
			}
		}
	}
}

// evil is a name that moves cursors, sets a terminal's title, and turns the direction of text.
const evil = "\x1b]0;owned\x07\u009b31m\u202e\nx\r\x7f\xff\u2028z"

// tenantFile is a region as its job's processes can write it.
type tenantFile struct{ *os.File }

func (f tenantFile) words(value uint64, n int, path ...any) error {
	var b []byte
	for range n {
		b = binary.LittleEndian.AppendUint64(b, value)
	}
	_, err := f.WriteAt(b, observer.Offset(path...))
	return err
}

func (f tenantFile) word(value uint64, path ...any) error { return f.words(value, 1, path...) }

func (f tenantFile) lock(at int64) error {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 1}
	return unix.FcntlFlock(f.Fd(), unix.F_SETLK, &l)
}

// slot writes an active slot.
func (f tenantFile) slot(slot int, pid, uid, joined uint64, name string) error {
	b := make([]byte, abi.NameLen)
	copy(b, name)
	_, err := f.WriteAt(b, observer.Offset("Slots", slot, "Name"))
	return errors.Join(err, f.word(pid, "Slots", slot, "PID"), f.word(uid, "Slots", slot, "UID"), f.word(joined, "Slots", slot, "Joined"),
		f.word(uint64(abi.MakeHostPID(1, int(uint32(pid)))), "Slots", slot, "HostPID"), f.word(uint64(abi.MakeStatus(1, abi.SlotActive)), "Status", slot))
}

func attackNames(f tenantFile) error {
	err := os.WriteFile("/proc/self/comm", []byte("\x1b[2J\u009b\xff"), 0)
	for slot := range 4 {
		if slot < 2 {
			err = errors.Join(err, f.lock(observer.Offset("Slots", slot)))
		}
		pid := uint64(1)
		if slot > 0 {
			pid = math.MaxUint64 - 4
		}
		err = errors.Join(err, f.slot(slot, pid, math.MaxUint64, math.MaxUint64, evil), f.word(1, "Accounts", 0, slot, "Gen"))
		for _, field := range []string{"Peak", "Driver"} {
			err = errors.Join(err, f.word(math.MaxUint64, "Accounts", 0, slot, field))
		}
	}
	return errors.Join(err, f.word(math.MaxUint64, "Header", "HighWater"), f.word(math.MaxUint64, "Devices", 0, "LedgerWord"),
		f.word(math.MaxUint64, "Devices", 0, "Peak"), f.word(math.MaxUint64, "Devices", 0, "Refused"),
		f.history())
}

// history writes the latest refusal and the latest death, whole and impossible.
func (f tenantFile) history() error {
	const most = math.MaxUint64
	refusal := abi.Refusal{Time: most, Slot: math.MaxUint32, Device: 0, PID: most, Asked: 1 << 40, Held: most, Limit: most, Own: most}
	for i := range refusal.Top {
		refusal.Top[i] = abi.Holder{PID: most, Bytes: most}
	}
	death := abi.Death{Time: most, Slot: math.MaxUint32, PID: most, HostPID: most, Joined: most, Reaper: most, Cause: math.MaxUint32}
	copy(death.Name[:], evil)
	for i := range death.Held {
		death.Held[i] = most
	}
	return errors.Join(f.entry(refusal, "Refusals", 0), f.word(1, "Header", "RefusalNext"), f.entry(death, "Deaths", 0), f.word(1, "Header", "DeathNext"))
}

// entry writes the first entry of a ring, with its sequence and its sum.
func (f tenantFile) entry(e any, path ...any) error {
	b, err := binary.Append(nil, binary.LittleEndian, e)
	if err != nil {
		return err
	}
	var sum uint64
	for at := 16; at < len(b); at += 8 {
		sum ^= binary.LittleEndian.Uint64(b[at:])
	}
	binary.LittleEndian.PutUint64(b, 2)
	binary.LittleEndian.PutUint64(b[8:], sum)
	_, err = f.WriteAt(b, observer.Offset(path...))
	return err
}

func attackLocks(f tenantFile) (err error) {
	const floods, slots = 3000, 20
	for i := range int64(floods) {
		err = errors.Join(err, f.lock(2*i))
	}
	for slot := range slots {
		err = errors.Join(err, f.lock(observer.Offset("Slots", slot)), f.slot(slot, 1, 0, uint64(slot)+1, "flood"))
	}
	for range 300 {
		if _, e := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 200); e != nil {
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, f.word(slots, "Header", "HighWater"))
}

func attackThreads(f tenantFile) (err error) {
	for slot := range abi.Slots - 1 {
		err = errors.Join(err, f.lock(observer.Offset("Slots", slot)), f.slot(slot, 1, 0, uint64(slot)+1, "thread"))
	}
	for range 300 {
		go func() {
			_ = unix.Nanosleep(&unix.Timespec{Sec: 60}, nil) // a system call that waits has a thread
		}()
	}
	return errors.Join(err, f.word(abi.Slots-1, "Header", "HighWater"))
}

// joined counts the processes that attackJoins has made up.
var joined uint64

func attackJoins(f tenantFile) (err error) {
	for slot := range abi.Slots - 1 {
		joined++
		err = errors.Join(err, f.slot(slot, uint64(slot)+100, 0, joined, "joins"))
		for d := range 4 {
			err = errors.Join(err, f.word(1, "Accounts", d, slot, "Gen"), f.word(1<<20, "Accounts", d, slot, "Peak"))
		}
	}
	for d := range 4 {
		err = errors.Join(err, f.word(1<<20/abi.Unit, "Devices", d, "Peak"))
	}
	return errors.Join(err, f.word(abi.Slots-1, "Header", "HighWater"), f.word(joined, "Header", "Counters", "Claims"))
}

func attackLedger(f tenantFile) error { return f.word(0, "Devices", 0, "LedgerWord") }

// attacked is how many slots the attacks on accounts and slots change.
const attacked = 8

func attackAccounts(f tenantFile) error {
	err := attackLedger(f)
	for slot := range attacked {
		words := int(observer.Offset("Accounts", 0, slot, "Done")-observer.Offset("Accounts", 0, slot, "A")) / 8
		err = errors.Join(err, f.words(0, words, "Accounts", 0, slot, "A"))
	}
	return err
}

func attackSlots(f tenantFile) error {
	return errors.Join(attackLedger(f), f.words(0, attacked, "Status", 0), f.word(0, "Header", "HighWater"))
}

func attackUUID(f tenantFile) error {
	return errors.Join(attackAccounts(f), f.words(0x0123456789abcdef, 2, "Limits", "Device", 0, "UUID"))
}

// attackLease takes a lease, and does not give it back when the kernel asks for it.
func attackMagic(f tenantFile) error { return f.word(1, "Header", "Magic") }

func attackCut(f tenantFile) error { return f.Truncate(8) }

func attackLease(path, ready string) error {
	signal.Ignore(unix.SIGIO)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return err
	}
	if err := os.WriteFile(ready, nil, 0o644); err != nil {
		return err
	}
	time.Sleep(time.Hour)
	return f.Close()
}
