// Package format holds docs/format.md to its promise: a reader in another
// language, written from that page alone, reads what Go reads.
package format

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/region"
)

const (
	page = "../../docs/format.md"
	MiB  = 1 << 20

	firstRefusal = abi.Refusals - 2 // ticket of the first refusal: the ring wraps
	refusals     = 7                // made in a busy region
	firstDeath   = abi.Deaths - 2   // ticket of the first death: the ring wraps
	deaths       = 5                // in a busy region

	serving = "größer serve.py --port 80" // one of the processes' names
)

var uuid = [2]uint64{0x0123456789abcdef, 0xfedcba9876543210}

// envDie names the region in which this program is to take a slot, and die.
const envDie = "RATION_TEST_FORMAT_DIE"

func TestMain(m *testing.M) {
	if path := os.Getenv(envDie); path != "" {
		fmt.Println(die(path)) // only if it did not
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func die(path string) error {
	r, err := region.Open(path, region.Options{NoCreate: true})
	if err != nil {
		return err
	}
	s, err := r.Claim("dies")
	if err != nil {
		return err
	}
	return errors.Join(s.Charge(0, abi.Data, 9*MiB), unix.Kill(os.Getpid(), unix.SIGKILL))
}

// The reader's JSON.
type (
	picture struct {
		Created   int64
		Counters  map[string]uint64
		Devices   []device
		Processes []process
		Refusals  []region.Refusal
		Deaths    []region.Death
	}
	device struct {
		Device                                     int
		Set, Limited                               bool
		Limit, Compute, Total, Used, Peak, Refused uint64
		UUID                                       string
		ContextCost                                uint64 `json:"context_cost"`
	}
	process struct {
		Slot, PID, UID int
		HostPID        int `json:"host_pid"`
		LockedBy       int `json:"locked_by"`
		Joined         int64
		Name           string
		Accounts       []account
	}
	account struct {
		Device                                               int
		Total, Context, Module, Data, Overhead, Peak, Driver uint64
		BestEffort                                           bool `json:"best_effort"`
	}
)

func python(t *testing.T, args ...string) (string, error) {
	t.Helper()
	if out, err := exec.Command("../../scripts/need", "python3").CombinedOutput(); err != nil {
		t.Fatalf("python3 is needed: %v\n%s", err, out)
	}
	// go test must read what Python reads, or it takes an older result.
	for _, file := range []string{page, "region_reader.py", args[0]} {
		_, err := os.ReadFile(file)
		expect.OK(t, err)
	}
	cmd := exec.Command("python3", args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, stderr.String())
	}
	return string(out), err
}

// read returns what the reader prints for the region at path.
func read(t *testing.T, path string) (p picture) {
	t.Helper()
	out, err := python(t, "region_reader.py", page, path)
	expect.OK(t, err)
	expect.OK(t, json.Unmarshal([]byte(out), &p))
	return p
}

// patch writes a word of the region's file. The descriptor stays open until the
// test ends: closing it would drop this process's locks on the slots.
type patch struct {
	t *testing.T
	f *os.File
}

func newPatch(t *testing.T, path string) patch {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return patch{t, f}
}

// at returns the offset of a field, given by names and by indices of arrays.
func at(path ...any) int64 { return observer.Offset(path...) }

func (p patch) word(value uint64, path ...any) {
	p.t.Helper()
	var b [8]byte
	for i := range b {
		b[i] = byte(value >> (8 * i))
	}
	_, err := p.f.WriteAt(b[:], at(path...))
	expect.OK(p.t, err)
}

func limits() (l region.Limits) {
	l.Memory[0] = abi.MakeLimit(100 * MiB)
	l.Memory[1] = abi.MakeLimit(1000 * MiB)
	l.Memory[3] = abi.Unlimited
	l.Memory[15] = abi.MakeLimit(0)
	l.Compute[1] = 40
	return l
}

// busy makes a region in which every part is used.
func busy(t *testing.T, path string) *region.Region {
	t.Helper()
	r, err := region.Open(path, region.Options{Limits: limits()})
	expect.OK(t, err)
	t.Cleanup(func() { _ = r.Close() })
	newPatch(t, path).word(firstRefusal, "Header", "RefusalNext")
	newPatch(t, path).word(firstDeath, "Header", "DeathNext")
	for range deaths {
		dies(t, path)
		n, err := r.Reap()
		expect.Must(t, n == 1 && err == nil, "reaped", n, err)
	}
	expect.OK(t, r.NameDevice(1, uuid, 80<<30))
	expect.OK(t, r.OfferCosts(region.Costs{Device: [abi.Devices]abi.ContextCost{1: abi.MakeContextCost(uuid, 518*MiB)}}))

	claim := func(name string) *region.Slot {
		s, err := r.Claim(name)
		expect.OK(t, err)
		return s
	}
	train, left, serve, idle := claim("train.py"), claim("left"), claim(serving), claim("idle")
	expect.OK(t, train.Charge(0, abi.Context, 10*MiB))
	expect.OK(t, train.Charge(0, abi.Module, 3*MiB))
	expect.OK(t, train.Charge(0, abi.Data, 41*MiB))
	expect.OK(t, train.Return(0, abi.Data, MiB))
	expect.OK(t, train.Charge(0, abi.Overhead, 7*MiB))
	expect.OK(t, left.Charge(1, abi.Data, 500*MiB))
	expect.OK(t, left.Leave())
	expect.OK(t, serve.Charge(0, abi.Data, 20*MiB+1))
	expect.OK(t, serve.Charge(1, abi.Data, 30*MiB))
	expect.OK(t, serve.Charge(3, abi.Data, 5*MiB))
	expect.OK(t, idle.Charge(15, abi.Data, 0))
	for range 4 {
		expect.Must(t, idle.Charge(15, abi.Data, 1) != nil, "a byte was granted where the limit is none")
	}
	for i := range 3 {
		expect.Must(t, serve.Charge(i%2, abi.Data, uint64(1100+i)*MiB) != nil, "a request beyond the limit was granted")
	}
	// Last: what a dead process holds is given back before a request is refused.
	dies(t, path)
	return r
}

// dies lets a process take a slot and die.
func dies(t *testing.T, path string) {
	t.Helper()
	die := exec.Command(os.Args[0])
	die.Env = append(os.Environ(), envDie+"="+path)
	out, err := die.CombinedOutput()
	expect.Must(t, err != nil && len(out) == 0, "a process that was to die", err, out)
}

// expected returns the same, read by Go.
func expected(t *testing.T, r *region.Region) (p picture) {
	t.Helper()
	c, err := r.Counters()
	expect.OK(t, err)
	p.Created = r.Created()
	p.Counters = map[string]uint64{"reads": c.Reads, "retries": c.Retries, "besteffort": c.BestEffort, "reaped": c.Reaped, "damaged": c.Damaged,
		"refused": c.Refused, "helped": c.Helped, "claims": c.Claims, "fast": c.Fast}
	costs, err := r.Costs()
	expect.OK(t, err)
	p.Refusals, err = r.Refusals()
	expect.OK(t, err)
	p.Deaths, err = r.Deaths()
	expect.OK(t, err)
	p.Deaths = append([]region.Death{}, p.Deaths...)
	for i, f := range p.Refusals {
		p.Refusals[i].Top = append([]region.Holder{}, f.Top...)
	}
	all, err := r.Processes()
	expect.OK(t, err)
	for _, q := range all {
		lockedBy := os.Getpid()
		if q.Dead {
			lockedBy = 0
		}
		p.Processes = append(p.Processes, process{q.Slot, q.PID, q.UID, q.HostPID, lockedBy, q.Joined, q.Name, []account{}})
	}
	for d := range abi.Devices {
		limit, err := r.Limit(d)
		expect.OK(t, err)
		total, err := r.Total(d)
		expect.OK(t, err)
		used, peak, err := r.Usage(d)
		expect.OK(t, err)
		p.Devices = append(p.Devices, device{Device: d, Set: limit.IsSet(), Limited: limit.Limited(), Limit: limit.Bytes(),
			Compute: limits().Compute[d], UUID: fmt.Sprintf("%032x", 0), Total: total, Used: used, Peak: peak, Refused: r.Refused(d),
			ContextCost: uint64(costs.Device[d]) & abi.MaxUnits * abi.Unit})
		if d == 1 {
			p.Devices[d].UUID = fmt.Sprintf("%016x%016x", uuid[0], uuid[1])
		}
		holdings, err := r.Holdings(d, nil)
		expect.OK(t, err)
		for _, h := range holdings {
			i := slices.IndexFunc(p.Processes, func(q process) bool { return q.Slot == h.Slot })
			driver, err := r.Driver(d, h.Slot)
			expect.OK(t, err)
			if h.Total > 0 || h.Peak > 0 {
				p.Processes[i].Accounts = append(p.Processes[i].Accounts, account{d, h.Total, h.Kind[abi.Context], h.Kind[abi.Module],
					h.Kind[abi.Data], h.Kind[abi.Overhead], h.Peak, driver, h.BestEffort})
			}
		}
	}
	return p
}

// named returns the process of that name.
func (p picture) named(t *testing.T, name string) process {
	t.Helper()
	i := slices.IndexFunc(p.Processes, func(q process) bool { return q.Name == name })
	expect.Must(t, i >= 0, "no process is named", name, p.Processes)
	return p.Processes[i]
}
