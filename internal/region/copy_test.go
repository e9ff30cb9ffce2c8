package region

import (
	"math/rand/v2"
	"os"
	"reflect"
	"sync/atomic"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// copyOf opens a copy of a region.
func copyOf(t *testing.T, r *Region) *Region {
	t.Helper()
	c, err := OpenReadOnly(r.Path())
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestCopy(t *testing.T) {
	r := open(t, 10*MiB)
	one, two := claim(t, r), claim(t, r)
	must(t, one.Charge(0, abi.Data, MiB))
	must(t, one.Charge(1, abi.Module, 2*MiB))
	must(t, two.Charge(0, abi.Context, 3*MiB))
	expect.Must(t, two.Charge(0, abi.Data, 100*MiB) != nil, "not refused")
	mapped, err := OpenMapped(r.Path())
	must(t, err)
	defer mapped.Close()
	c := copyOf(t, r)
	for what, look := range map[string]func(*Region) (any, error){
		"device 0":  func(r *Region) (any, error) { return r.Holdings(0, nil) },
		"device 1":  func(r *Region) (any, error) { return r.Holdings(1, nil) },
		"device 2":  func(r *Region) (any, error) { return r.Holdings(2, nil) },
		"processes": func(r *Region) (any, error) { return r.Processes() },
		"refusals":  func(r *Region) (any, error) { return r.Refusals() },
		"limit":     func(r *Region) (any, error) { return r.Limit(0) },
		"created":   func(r *Region) (any, error) { return r.Created(), nil },
		"usage":     func(r *Region) (any, error) { return [2]uint64{r.Used(0), r.Peak(0)}, nil },
	} {
		want, err := look(mapped)
		must(t, err)
		got, err := look(c)
		expect.True(t, err == nil && reflect.DeepEqual(got, want), what, "the copy has", got, "(", err, "), the region", want)
	}
	must(t, one.Charge(0, abi.Data, MiB))
	expect.True(t, c.Used(0) == 4*MiB, "a copy changed by itself", c.Used(0))
	must(t, c.Refresh())
	expect.True(t, c.Used(0) == 5*MiB, "after a refresh it has", c.Used(0))
}

// An account that changes while it is copied is copied again; one that always does is
// marked, and costs a bounded number of tries.
func TestCopyOfAnAccountThatChanges(t *testing.T) {
	for _, c := range []struct {
		name    string
		changes int // a change after each of so many system calls
		torn    bool
		retries uint64 // the least
	}{{"once", 1, false, 0}, {"for a while", 20, false, 1}, {"always", 1 << 30, true, abi.ReadTries}} {
		t.Run(c.name, func(t *testing.T) {
			r := open(t, 1<<30)
			s := claim(t, r)
			must(t, s.Charge(0, abi.Data, MiB))
			look := copyOf(t, r)
			calls := 0
			must(t, look.copyWith(func() {
				if calls++; calls <= c.changes {
					must(t, s.Charge(0, abi.Kind(calls%int(abi.Kinds)), MiB))
				}
			}))
			h, err := look.Holdings(0, nil)
			must(t, err)
			expect.Must(t, len(h) == 1 && h[0].BestEffort == c.torn, "after", calls, "calls", h)
			var sum uint64
			for _, bytes := range h[0].Kind {
				sum += bytes
			}
			expect.True(t, c.torn || sum == h[0].Total, "a total of", h[0].Total, "kinds", h[0].Kind)
			expect.True(t, calls <= 3*100+50, calls, "system calls") // 100 tries, as the protocol has it
			best := uint64(0)
			if c.torn {
				best = 1
			}
			count, err := look.Counters()
			must(t, err)
			expect.True(t, count.Reads == 1 && count.Retries >= c.retries && count.Retries <= abi.ReadTries && count.BestEffort == best,
				"counted", count)
		})
	}
}

// A caller that has nothing left of its budget gets the account as it was, marked, after one try.
func TestCopyWithoutTime(t *testing.T) {
	r := open(t, 1<<30)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Data, MiB))
	look := copyOf(t, r)
	budget := 3
	look.SetBudget(func() bool { budget--; return budget >= 0 })
	calls := 0
	must(t, look.copyWith(func() {
		calls++
		must(t, s.Charge(0, abi.Data, MiB))
	}))
	h, err := look.Holdings(0, nil)
	must(t, err)
	expect.True(t, len(h) == 1 && h[0].BestEffort && budget == -1 && calls <= 30, "after", calls, "calls, with a budget of", budget, h)
}

// A slot that changes hands while it is copied is nobody's.
func TestCopyOfASlotThatChanges(t *testing.T) {
	r := open(t, 1<<30)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Data, MiB))
	look := copyOf(t, r)
	first := true
	must(t, look.copyWith(func() {
		if first {
			atomic.AddUint64(&r.m.Status[s.Index()], uint64(abi.MakeStatus(1, 0)))
		}
		first = false
	}))
	p, err := look.Processes()
	must(t, err)
	expect.Equal(t, len(p), 0, p)
}

// Whatever a tenant writes, a copy is taken, or refused, in bounded time.
func TestCopyOfRubbish(t *testing.T) {
	r := open(t, 1<<30)
	good, err := os.ReadFile(r.Path())
	must(t, err)
	random := rand.New(rand.NewPCG(1, 2))
	header, rounds := int(slotsOffset), 50
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		b := append([]byte(nil), good...)
		for i := range b {
			if i >= 4096 && (i < header || random.IntN(4) == 0) {
				b[i] = byte(random.Uint32())
			}
		}
		for i := 64; i < 600; i++ { // the header's counts
			b[i] = byte(random.Uint32())
		}
		copy(b[tailOffset:], good[tailOffset:])
		must(t, os.WriteFile(r.Path(), b, 0o600))
		c, err := OpenReadOnly(r.Path())
		if err != nil {
			continue
		}
		for d := range abi.Devices {
			_, _ = c.Holdings(d, nil)
		}
		_, err1 := c.Processes()
		_, err2 := c.Refusals()
		expect.True(t, err1 == nil && err2 == nil, err1, err2)
		must(t, c.Close())
	}
}
