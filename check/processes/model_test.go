package processes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// reference is the simplest implementation of a region, for a single process: a few
// sums. It counts in units.
type reference struct {
	limit [2]int
	mine  [2][abi.Kinds]int // what the worker holds
	dead  [2]int            // what killed processes hold, until it is needed

	latest [2]int // of dead, what the latest of them holds
	forces bool   // the worker can charge beyond the limit, as the library does
}

func (m *reference) used(device int) int {
	sum := m.dead[device]
	for _, units := range m.mine[device] {
		sum += units
	}
	return sum
}

// charge returns the answer to a charge. A charge that finds no room reaps what the
// dead hold of its device. Each of them holds something of one device only.
func (m *reference) charge(device int, kind abi.Kind, units int) string {
	if units == 0 {
		return "ok"
	}
	if m.used(device)+units > m.limit[device] {
		m.dead[device] = 0
	}
	if m.used(device)+units > m.limit[device] {
		return "refused"
	}
	m.mine[device][kind] += units
	return "ok"
}

func (m *reference) giveBack(device int, kind abi.Kind, units int) string {
	if units > m.mine[device][kind] {
		return "error notheld"
	}
	m.mine[device][kind] -= units
	return "ok"
}

// step gives a random order to a worker and to the reference, and returns both
// answers.
func (m *reference) step(t *testing.T, random *rand.Rand, w *worker, path string) (order, got, want string) {
	device, kind := random.IntN(2), abi.Kind(random.IntN(int(abi.Kinds)))
	bytes := random.IntN(40 * abi.Unit)
	units := (bytes + abi.Unit - 1) / abi.Unit
	change := func(verb string) string { return fmt.Sprintf("%s %d %v %d", verb, device, kind, bytes) }
	switch n := random.IntN(100); {
	case n < 45:
		order, want = change("charge"), m.charge(device, kind, units)
	case n < 85:
		order, want = change("return"), m.giveBack(device, kind, units)
	case n < 90 && m.forces:
		order, want = change("force"), "ok"
		m.mine[device][kind] += units
	case n < 90:
		order, want = change("charge"), m.charge(device, kind, units)
	case n < 94:
		m.limit[device] = 20 + random.IntN(200)
		order, want = fmt.Sprintf("limit %d %d", device, m.limit[device]*abi.Unit), "ok"
	case n < 96:
		m.dead = [2]int{}
		order, want = "reap", "ok"
	case n < 98:
		m.mine = [2][abi.Kinds]int{}
		w.OK("leave")
		order, want = "claim again", "ok"
	default:
		m.addDead(t, path, device, 1+random.IntN(10))
		order, want = "used 0", "ok"
	}
	answer := w.Ask("%s", order)
	return order, strings.TrimSpace(answer.Verdict() + " " + answer.Code()), want
}

// addDead has another process charge something and die. It claims a slot without
// reaping, since few slots are taken.
func (m *reference) addDead(t *testing.T, path string, device, units int) {
	t.Helper()
	other := join(t, cOnly(), 0, path) // which can charge beyond the limit
	other.OK("force %d data %d", device, units*abi.Unit)
	other.Kill()
	m.dead[device] += units
	m.latest[device] = units
}

// compare compares the region with the reference.
func (m *reference) compare(w *worker) error {
	for d := range m.limit {
		// What the dead hold goes back when it is needed; or before, at a new peak, which may
		// be that of the process that died last.
		for _, left := range []int{0, m.latest[d]} {
			if left <= m.dead[d] && w.OK("used %d", d).Int("bytes") == (m.used(d)-m.dead[d]+left)*abi.Unit {
				m.dead[d] = left
			}
		}
		if got, want := w.OK("used %d", d).Int("bytes"), m.used(d)*abi.Unit; got != want {
			return fmt.Errorf("device %d: %d bytes used, want %d", d, got, want)
		}
		kinds, total := "", 0
		for _, units := range m.mine[d] {
			kinds += fmt.Sprintf(":%d", units*abi.Unit)
			total += units * abi.Unit
		}
		want := fmt.Sprintf(":%d%s", total, kinds)
		if !slices.ContainsFunc(w.OK("holdings %d", d).Fields(), func(f string) bool { return strings.HasSuffix(f, want) }) {
			return fmt.Errorf("device %d: no slot holds %s", d, want)
		}
	}
	return nil
}

// A worker that carries out random orders, beside others that die, holds at every step
// what the reference says.
func TestAgainstReference(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		random := random(t)
		for range rounds(4) {
			path := newPath(t)
			m := &reference{limit: [2]int{100, 100}, forces: mix.of(0).name == inC.name}
			w := join(t, mix, 0, path, m.limit[0]*abi.Unit, m.limit[1]*abi.Unit)
			var history []string
			for range 600 {
				order, got, want := m.step(t, random, w, path)
				history = append(history, fmt.Sprintf("%s: %s", order, got))
				err := m.compare(w)
				expect.Must(t, got == want && err == nil, want, err, "after", strings.Join(history[max(0, len(history)-20):], "\n"))
			}
			w.OK("reap")
			finish(t, path, w)
		}
	})
}
