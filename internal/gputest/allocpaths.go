package gputest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"ration/internal/humanfmt"
)

// allocpathChecks takes memory along every allocation path, one at a time, by the
// driver\'s own calls.
func allocpathChecks() (all []Check) {
	for _, path := range []string{"linear", "odd", "pitch", "managed", "pool", "vmm", "array", "graph", "contexts", "module"} {
		all = append(all, Check{Group: "allocpath", Name: path, Room: 6 * gib, run: func(s *Stage) error {
			s.managed = path == "managed"
			return s.walk(4*gib, s.native("allocpaths", path, strconv.FormatUint(64*mib, 10), strconv.FormatUint(5*gib, 10)))
		}})
	}
	return append(all,
		Check{Group: "allocpath", Name: "ipc", Room: 5 * gib, run: func(s *Stage) error {
			return s.walk(4*gib, s.native("ipc", strconv.FormatUint(256*mib, 10)))
		}},
		Check{Group: "allocpath", Name: "fork", Room: 5 * gib, run: func(s *Stage) error {
			return s.walk(4*gib, s.native("forker", strconv.FormatUint(256*mib, 10)))
		}})
}

// roundings are what the books may have beyond what a program knows it took: each
// call is rounded up by the driver, and pools and graphs take whole blocks.
const roundings = 64 * mib

// walk goes through all steps of one program, whatever they are. At each the two
// counts must agree, and the books have what the program says it took.
func (s *Stage) walk(limit uint64, command []string, env ...string) error {
	if err := s.open(limit); err != nil {
		return err
	}
	w := s.watch()
	defer w.stop()
	if _, err := s.start(env, command...); err != nil {
		return err
	}
	var names []string
	err := s.lockstep(func(steps []Step) error {
		names = append(names, steps[0].Name)
		if s.managed && s.NVML == "" {
			// The driver counts managed memory for the device, and for no process.
			var err error
			if s.unlisted, err = steps[0].Bytes("data"); err != nil {
				return err
			}
		}
		all, err := s.agree(steps[0].Name)
		if err != nil {
			return err
		}
		return took(steps[0], all)
	})
	if err != nil {
		return err
	}
	err = s.kept(w, 1)
	s.see("%s", strings.Join(names, ", "))
	s.seeOff()
	return errors.Join(err, s.nothingLeft())
}

// took compares what a program says it has with what the books have, of the kinds
// that it names.
func took(step Step, all []account) error {
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
		var have uint64
		for _, a := range all {
			have += kind.of(a)
		}
		if have < want || have > want+roundings {
			return fmt.Errorf("%s: the books have %s as %s, the program took %s", step.Name, humanfmt.Bytes(have), kind.name, humanfmt.Bytes(want))
		}
	}
	return nil
}
