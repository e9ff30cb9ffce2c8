package gputest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"ration/internal/humanfmt"
)

// TestAllocpath takes memory along every allocation path, one at a time, by the
// driver's own calls.
func TestAllocpath(t *testing.T) {
	for _, path := range []string{"linear", "odd", "pitch", "managed", "pool", "vmm", "array", "graph", "contexts", "module"} {
		check(t, path, 6*gib, nil, func(t *trial) {
			limit := 4 * gib
			if t.managed = path == "managed"; t.managed || path == "vmm" {
				limit = short(t, 2*gib, limit) // the stand-in takes it from the host, which is slow
			}
			t.runSteps(limit, t.native("allocpaths", path, strconv.FormatUint(piece, 10), strconv.FormatUint(limit+gib, 10)))
		})
	}
	for name, program := range map[string]string{"ipc": "ipc", "fork": "forker"} {
		check(t, name, 5*gib, nil, func(t *trial) { t.runSteps(4*gib, t.native(program, strconv.FormatUint(256*mib, 10))) })
	}
}

// rounding is by how much ration's count may exceed what a program knows it has, in
// bytes: the driver rounds each request up, and pools and graphs take whole blocks.
const rounding = 64 * mib

// runSteps goes through all steps of one program, which may start others. At each,
// ration's count must agree with the driver's, and include what the program says it has.
func (t *trial) runSteps(limit uint64, command []string) {
	t.open(limit)
	o := t.observeCounts()
	defer o.stop()
	t.start(nil, command...)
	var names []string
	processes := 0 // at most
	t.eachStep(func(steps []step) {
		s := steps[0]
		names = append(names, s.name)
		if t.managed && !t.onStandIn() {
			t.unlisted = s.bytes(t, "data") // the driver counts managed memory for the device, but for no process
		}
		all := t.compare(s.name)
		processes = max(processes, len(all))
		t.must(checkHeld(s, all))
	})
	t.checkObserved(o, max(processes, 1))
	t.note("%s, with %s", strings.Join(names, ", "), humanfmt.Plural(processes, "process", "processes"))
	t.noteDifference()
	t.checkNothingLeft()
}

// checkHeld compares what a program says it has with ration's count, for the kinds
// that the program names.
func checkHeld(s step, all []account) error {
	held := map[string]uint64{}
	for _, a := range all {
		held["data"] += a.data
		held["module"] += a.module
	}
	for kind, counted := range held {
		if s.values[kind] == "" {
			continue
		}
		want, err := strconv.ParseUint(s.values[kind], 10, 64)
		if err != nil || counted < want || counted > want+rounding {
			return fmt.Errorf("%s: ration counts %s as %s, the program has %s bytes", s.name, humanfmt.Bytes(counted), kind, s.values[kind])
		}
	}
	return nil
}
