package region

import (
	"sync"
	"testing"

	"ration/internal/abi"
)

// overHeap is a region over ordinary memory, which the race detector can see,
// with processes that die when a test says so.
func overHeap(t testing.TB) (*Region, *mortals) {
	t.Helper()
	m := &mortals{gone: map[int]bool{}}
	r := &Region{path: "heap", m: new(abi.Region), writable: true, alive: m}
	r.limits = &r.m.Limits
	r.m.Tail.Magic = abi.TailMagic
	return r, m
}

// mortals are processes that exist only as slots.
type mortals struct {
	sync.Mutex
	gone map[int]bool
}

func (m *mortals) lock(slot int) (bool, error) {
	m.Lock()
	defer m.Unlock()
	m.gone[slot] = false
	return true, nil
}
func (m *mortals) unlock(int)     {}
func (m *mortals) holder(int) int { return 0 }

func (m *mortals) blocker(int) int { return 0 }

func (m *mortals) kept(int) bool { return false }

func (m *mortals) outlived(int, abi.Status) bool { return false }
func (m *mortals) dead(slot int, _ *abi.Slot, _ abi.Status) int {
	m.Lock()
	defer m.Unlock()
	if m.gone[slot] {
		return abi.CauseEnded
	}
	return 0
}
func (m *mortals) kill(slot int) {
	m.Lock()
	defer m.Unlock()
	m.gone[slot] = true
}
