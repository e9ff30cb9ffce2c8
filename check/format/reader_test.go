package format

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/region"
)

// compare compares what the reader reads of a region with what Go reads of it.
func compare(t *testing.T, r *region.Region, path string) picture {
	t.Helper()
	want := expected(t, r) // first: it writes the counts of its own reads down
	got := read(t, path)
	if !reflect.DeepEqual(got, want) {
		a, _ := json.MarshalIndent(got, "", " ")
		b, _ := json.MarshalIndent(want, "", " ")
		t.Errorf("Python reads\n%s\nGo reads\n%s", a, b)
	}
	return got
}

func TestReaderAgrees(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	r := busy(t, path)
	got := compare(t, r, path)
	// Both could be wrong in the same way: some numbers as they were made.
	p := got.named(t, "dies")
	expect.True(t, len(got.Processes) == 4 && p.LockedBy == 0 && p.Accounts[0].Data == 9*MiB,
		len(got.Processes), "processes, the dead one is", p)
	a := got.named(t, "train.py").Accounts[0]
	expect.True(t, a.Context == 10*MiB && a.Module == 3*MiB && a.Data == 40*MiB && a.Overhead == 7*MiB && a.Peak == 60*MiB,
		"train.py holds", a)
	d := got.Devices[1]
	expect.True(t, d.Limit == 1000*MiB && d.Used == 30*MiB && d.Peak == 500*MiB && d.Refused == 1 && d.ContextCost == 518*MiB,
		"device 1 is", d)
	n, f := len(got.Refusals), got.Refusals[0]
	expect.True(t, n == refusals && f.Asked == 1102*MiB && f.Top[0].Bytes == 60*MiB, n, "refusals, the latest is", f)
}

// interrupt leaves writes under way in the region, as processes that died in them
// would.
func interrupt(t *testing.T, path string, whole picture) {
	p := newPatch(t, path)
	train, serve, idle := whole.named(t, "train.py").Slot, whole.named(t, serving).Slot, whole.named(t, "idle").Slot
	// B is being written: A counts. A is being written: B counts.
	p.word(1<<40|abi.PhaseB, "Accounts", 0, train, "Phase")
	p.word(12345, "Accounts", 0, train, "B", "Total")
	p.word(1<<40|abi.PhaseA, "Accounts", 0, serve, "Phase")
	p.word(12345, "Accounts", 0, serve, "A", "Total")
	p.word(777*MiB, "Accounts", 0, serve, "Driver")
	p.word(5, "Slots", serve, "Left") // an owner before
	// An account that is still the last owner's, and a slot that is being taken.
	p.word(0, "Accounts", 3, serve, "Gen")
	p.word(uint64(abi.MakeStatus(9, abi.SlotJoining)), "Status", idle)
	// The newest refusal is being written, and two writers met in the one before.
	newest := uint64(firstRefusal + refusals - 1)
	p.word(2*newest+1, "Refusals", int(newest%abi.Refusals), "Seq")
	p.word(1, "Refusals", int((newest-1)%abi.Refusals), "Sum")
	// And so of the deaths.
	newest = firstDeath + deaths - 1
	p.word(2*newest+1, "Deaths", int(newest%abi.Deaths), "Seq")
	p.word(1, "Deaths", int((newest-1)%abi.Deaths), "Sum")
	for i := range reflect.TypeFor[abi.Counters]().NumField() {
		if name := reflect.TypeFor[abi.Counters]().Field(i).Name; name != "_" {
			p.word(uint64(1000+i), "Header", "Counters", name)
		}
	}
}

func TestReaderInTheMiddleOfWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	r := busy(t, path)
	interrupt(t, path, expected(t, r))
	got := compare(t, r, path)
	train, serve := got.named(t, "train.py").Accounts, got.named(t, serving).Accounts
	expect.True(t, train[0].Total == 60*MiB && serve[0].Total == 20*MiB+abi.Unit && serve[0].Driver == 777*MiB && len(serve) == 2,
		"accounts are", train, serve)
	expect.True(t, len(got.Processes) == 3 && len(got.Refusals) == refusals-2,
		len(got.Processes), "processes", len(got.Refusals), "refusals")
}

func TestReaderFindsLimitsBeside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	expect.OK(t, region.WriteLimitsFile(path, limits()))
	got := compare(t, busy(t, path), path)
	d := got.Devices[0]
	expect.Equal(t, d.Limit, 100*MiB, "device 0 is", d)
	// The region's own word on it is the job's to write.
	newPatch(t, path).word(abi.LimitsInside<<32|abi.Version, "Header", "Version")
	d = read(t, path).Devices[0]
	expect.Equal(t, d.Limit, 100*MiB, "with other flags, device 0 is", d)
	expect.OK(t, os.Chmod(path+region.LimitsSuffix, 0o664))
	refuses(t, path, "planted")
}

func refuses(t *testing.T, path, why string) {
	t.Helper()
	out, err := python(t, "region_reader.py", page, path)
	expect.True(t, err != nil && strings.Contains(err.Error(), why), "want a refusal that says", why, err, out)
}

func TestReaderRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "region")
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	expect.OK(t, r.Close())
	good, err := os.ReadFile(path)
	expect.OK(t, err)
	for why, change := range map[string]func([]byte) []byte{
		fmt.Sprintf("version %d", abi.Version+1): func(b []byte) []byte { b[at("Header", "Version")]++; return b },
		"not a region":                           func(b []byte) []byte { b[0]++; return b },
		"bytes":                                  func(b []byte) []byte { return b[:len(b)-1] },
		"is missing":                             func(b []byte) []byte { b[at("Header", "Flags")] = abi.LimitsBeside; return b },
		"damaged":                                func(b []byte) []byte { b[at("Tail", "Magic")] = 0; return b },
		"still being made":                       func(b []byte) []byte { b[at("Header", "State")] = abi.StateInProgress; return b },
		"still":                                  func([]byte) []byte { return nil },
	} {
		expect.OK(t, os.WriteFile(path, change(slices.Clone(good)), 0o600))
		refuses(t, path, why)
	}
	expect.OK(t, os.Symlink(path, filepath.Join(dir, "link")))
	refuses(t, filepath.Join(dir, "link"), "symbolic links")
	refuses(t, dir, "not a regular file")
}

// A reader ends, and what it calls consistent is, also beside writers.
func TestReaderBesideAWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	r := busy(t, path)
	s, err := r.Claim("writes without pause")
	expect.OK(t, err)
	done := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			for _, kind := range []abi.Kind{abi.Data, abi.Module} {
				if s.Charge(1, kind, MiB) != nil || s.Return(1, kind, MiB) != nil {
					t.Error("charging and returning a mebibyte")
					return
				}
			}
		}
	})
	got := read(t, path)
	close(done)
	writer.Wait()
	for _, p := range got.Processes {
		for _, a := range p.Accounts {
			sum := a.Context + a.Module + a.Data + a.Overhead
			expect.True(t, a.BestEffort || a.Total == sum, "a consistent read has a total of", a.Total, "and a sum of", sum)
		}
	}
}

// unused are the rows that make no difference to a reader: what only members of the
// job use, what other rows say as well, what is tested by itself (Header.Flags), and bounds that
// are not reached.
var unused = []string{
	"Region.Compute", "Header.Flags", "LimitsInside", "Header.Devices", "Header.Slots", "Header.Ticket", "Header.HostPIDLock", "Header.NVMLPIDs", "Limits.Changes",
	"Slot.Start", "Slot.PIDNS", "Account.Pend", "Account.Used", "Account.Done",
	"Device.Fences", "LedgerWord.Slot", "LedgerWord.Seq", "Pend.Seq", "Pend.Delta", "Used.Seq", "Used.Units", "ContextCost.Hash",
	"NVMLPIDs.Namespace", "NVMLPIDs.Own", "Phase.Count",
	"Limits.Round", "DeviceLimits.ComputeMax", "DeviceLimits.Hidden", "Limits.Priority", "PriorityHigh", "PriorityLow", "PriorityNormal", "Compute.Due", "Compute.Clock", "Compute.Parts", "Compute.Used", "Compute.Waited", "Compute.InTurn",
	"Account.Work", "Account.Slice", "Account.TimeUsed", "Account.TimeWaited", "Account.Uncharged",
	"Account.Exported", "Account.ExportLock", "Exported.Units", "Exported.File", "ExportLockUnknown", "ExportLockFirst", "ExportFiles",
	"Due.Time", "Due.Cap", "TimePart.Number", "TimePart.Used", "Work.Time", "Work.Contexts", "Work.Waiting", "Slice.Time", "Slice.State",
	"DefaultRound", "MinRound", "MaxRound", "ComputeNone", "WorkLeaseUS", "UnchargedNS", "DueTimeBits", "DueCapBits", "PartUsedBits", "PartNumberBits", "PartNS", "Parts", "WorkTimeBits", "WorkContextBits", "WorkWaitingBit", "SliceTimeBits", "SliceStateBits",
	"SliceNone", "SliceKept", "SliceUnseen", "SliceUnknown", "SliceRefused", "SliceLost", "SliceCrowded", "SliceReady",
	"Slots", "PageSize", "NameLen", "Holders", "StateUninit", "StateInProgress", "Kinds", "ReadTries", "ReapTries", "InitTimeoutNS",
	"DoneRefresh", "ClaimWindow", "PeakStep", "WordSeqBits", "WordSlotBits", "WordSlotShift", "WordUnitShift", "MaxUnits", "SeqBits", "PendDeltaBits",
	"UsedUnitBits", "SlotFree", "SlotJoining", "SlotCondemned", "SlotDamaged", "SlotLent", "FenceSlot", "StatusStateBits", "PhaseIdle", "PhaseB", "Phases", "LimitUnitBits", "LimitSetBit",
	"Unlimited",
	"Header.WaitNext", "Header.Waiters", "Waiter.Place", "Waiter.Units", "Waiter.Since", "Waiter.Beat", "Waiters", "Device.Wake", "Limits.WaitAlloc", "Refusal.Waited", "Waited.Nanoseconds", "Waited.Mutual", "WaitedMutualBit",
	"WaitPlace.Owner", "WaitPlace.Device", "WaitPlace.Gen", "WaitPlace.Ticket", "PlaceSlotBits", "PlaceDeviceBits", "PlaceGenBits", "PlaceTicketBits",
	"WakeStep", "WakeWaiting", "WaitAllocNone", "MaxWaitAlloc", "WaitLookNS", "WaitLookLateNS", "WaitStaleNS",
	"Header.Sleep", "Header.Wanted", "Header.Slept", "Slot.Turns", "Slot.Cannot", "Sleep.State", "Sleep.Manual", "Sleep.Count", "Turns.Count", "Turns.Gen", "TurnsCountBits",
	"Awake", "Falling", "Asleep", "Waking", "Restoring", "SleepStateBits", "SleepManualBit", "SleepCountShift",
	"CannotManaged", "CannotExported", "CannotImported", "CannotCapture", "CannotMPS", "CannotDriver", "CannotGroup", "CannotUnknown",
	"Slot.Lane", "Lane.State", "Lane.Why", "Lane.Number", "Lane.Gen", "LaneNone", "LaneIn", "LaneDraining", "LaneLeaving", "LaneOut", "LaneComing", "LaneDone", "LaneNoMemory", "LaneFailed", "LaneNoRoom",
	"LaneStateBits", "LaneWhyBits", "LaneNumberBits", "LaneWhyShift", "LaneNumberShift", "LaneGenShift",
	"Slot.Told", "Told.Gen", "Told.Seconds", "ToldSeconds", "ToldGenShift",
	"CauseUnknown", "CauseUnseen", "CauseExec", "CauseEnded", "CauseReused", "CauseZombie", "CauseUnmapped", "CauseJoining",
}

// The reader goes by the page: with another number in any row that matters, it reads
// other values.
func TestEveryRowCounts(t *testing.T) {
	rows := map[string]int{}
	dir := t.TempDir()
	expect.OK(t, region.WriteLimitsFile(filepath.Join(dir, "beside"), limits()))
	for _, name := range []string{"inside", "beside"} {
		path := filepath.Join(dir, name)
		interrupt(t, path, expected(t, busy(t, path)))
		out, err := python(t, "page_mutants.py", page, path)
		expect.OK(t, err)
		var same []string
		expect.OK(t, json.Unmarshal([]byte(out), &same))
		for _, row := range same {
			rows[row]++
		}
	}
	for row, regions := range rows {
		expect.True(t, regions != 2 || slices.Contains(unused, row), "the reader does not go by the row of", row)
	}
}
