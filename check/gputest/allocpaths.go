package gputest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"ration/internal/humanfmt"
)

// allocpathChecks takes memory along every allocation path, one at a time, by the
// driver's own calls.
func allocpathChecks() (all []Check) {
	for _, path := range []string{"linear", "odd", "pitch", "managed", "pool", "vmm", "array", "graph", "contexts", "module"} {
		all = append(all, Check{Group: "allocpath", Name: path, Room: 6 * gib, run: func(t *Trial) error {
			t.managed = path == "managed"
			return t.runSteps(4*gib, t.native("allocpaths", path, strconv.FormatUint(64*mib, 10), strconv.FormatUint(5*gib, 10)))
		}})
	}
	return append(all,
		Check{Group: "allocpath", Name: "ipc", Room: 5 * gib, run: func(t *Trial) error {
			return t.runSteps(4*gib, t.native("ipc", strconv.FormatUint(256*mib, 10)))
		}},
		Check{Group: "allocpath", Name: "fork", Room: 5 * gib, run: func(t *Trial) error {
			return t.runSteps(4*gib, t.native("forker", strconv.FormatUint(256*mib, 10)))
		}})
}

// rounding is by how much ration's count may exceed what a program knows it has, in
// bytes: the driver rounds each request up, and pools and graphs take whole blocks.
const rounding = 64 * mib

// runSteps goes through all steps of one program. At each, ration's count must agree
// with the driver's, and include what the program says it has.
func (t *Trial) runSteps(limit uint64, command []string, env ...string) error {
	if err := t.open(limit); err != nil {
		return err
	}
	o := t.observeCounts()
	defer o.stop()
	if _, err := t.start(env, command...); err != nil {
		return err
	}
	var names []string
	err := t.eachStep(func(steps []Step) error {
		names = append(names, steps[0].Name)
		if t.managed && t.NVML == "" {
			// The driver counts managed memory for the device, but for no process.
			var err error
			if t.unlisted, err = steps[0].Bytes("data"); err != nil {
				return err
			}
		}
		all, err := t.compare(steps[0].Name)
		if err != nil {
			return err
		}
		return checkHeld(steps[0], all)
	})
	if err != nil {
		return err
	}
	err = t.checkObserved(o, 1)
	t.note("%s", strings.Join(names, ", "))
	t.noteDifference()
	return errors.Join(err, t.checkNothingLeft())
}

// checkHeld compares what a program says it has with ration's count, for the kinds
// that the program names.
func checkHeld(step Step, all []account) error {
	for _, kind := range []struct {
		name string
		of   func(account) uint64
	}{
		{"data", func(a account) uint64 { return a.data }},
		{"module", func(a account) uint64 { return a.module }},
	} {
		if step.values[kind.name] == "" {
			continue
		}
		want, err := step.Bytes(kind.name)
		if err != nil {
			return err
		}
		var counted uint64
		for _, a := range all {
			counted += kind.of(a)
		}
		if counted < want || counted > want+rounding {
			return fmt.Errorf("%s: ration counts %s as %s, the program has %s", step.Name, humanfmt.Bytes(counted), kind.name, humanfmt.Bytes(want))
		}
	}
	return nil
}
