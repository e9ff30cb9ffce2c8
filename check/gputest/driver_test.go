package gputest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/humanfmt"
	"ration/internal/node"
)

// TestDriver prints what the driver does where its documentation does not say, and checks that programs
// get the same answers in a job.
func TestDriver(t *testing.T) {
	for _, c := range []struct {
		mode  string
		room  uint64 // bytes that the job has beyond the program's context
		fill  bool
		want  map[string]string // by step, a value that the answer in the job must have where it is not the driver's own
		skips []string          // steps that depend on how much memory there is
	}{
		// 64, 96 and 64 MiB of a graph fit one after the other, and not beside one another.
		{mode: "graph", room: 160 * mib, want: map[string]string{"apart-launch": "result=2"}, skips: []string{"apart-launched", "apart-trimmed"}},
		{mode: "context", room: 2 * gib, fill: true},
		{mode: "mipmap", room: 256 * mib, fill: true},
		{mode: "library", room: 64 * mib, want: map[string]string{"asked": "bytes=0 result=2", "again": "bytes=0 result=2"}},
	} {
		check(t, c.mode, 8*gib, nil, func(t *trial) {
			var native map[string]string
			var context uint64
			t.inside(func(t *trial) { native, context = t.answers("natively", c.mode) })
			t.open(context + c.room)
			args := []string{c.mode}
			if c.fill {
				args = append(args, "fill")
			}
			inJob, _ := t.answers("in a job", args...)
			for _, name := range slices.Sorted(maps.Keys(native)) {
				want, special := c.want[name]
				switch {
				case slices.Contains(c.skips, name), name == "failed" && t.onStandIn(): // where no kernel fails
				case c.mode == "mipmap" && native[name] == "result=0" && inJob[name] == "result=2": // there is no room for it
				case special && !strings.HasPrefix(inJob[name], want), !special && inJob[name] != native[name]:
					t.Fatalf("%s: %q in a job, and %q natively", name, inJob[name], native[name])
				}
			}
		})
	}
}

// answers runs the program answers and notes what it says at each step, and by how much the driver's
// counts have changed since the first. It returns the answers by step, and what the driver counts at first.
func (t *trial) answers(where string, args ...string) (said map[string]string, context uint64) {
	said = map[string]string{}
	free := uint64(0)
	t.start(nil, t.native("answers", args...)...)
	t.eachStep(func(steps []step) {
		s, listed := steps[0], t.listedSum()
		now, err := t.driver.Free(t.device)
		t.must(err)
		if s.name == "ready" {
			context, free = listed, now
			return
		}
		said[s.name] = s.text()
		t.Logf("%s, %s: %s; %+d MiB for the process, %+d MiB for the device", where, s.name, s.text(),
			(int64(listed)-int64(context))/int64(mib), (int64(free)-int64(now))/int64(mib))
		expect.Must(t, t.job.Name == "" || listed <= t.limit+lazyLoad,
			s.name, "the driver counts", humanfmt.Bytes(listed), "which exceeds the limit of", humanfmt.Bytes(t.limit))
	})
	return said, context
}

// text returns the values of a step.
func (s step) text() string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		all = append(all, key+"="+s.values[key])
	}
	return strings.Join(all, " ")
}

// TestShareable checks that shareable memory is counted as long as a process of the job can reach it:
// by a handle, a mapping, a descriptor, which may be a dma-buf of any memory, or an IPC handle.
func TestShareable(t *testing.T) {
	const bytes = 256 * mib
	size := strconv.FormatUint(bytes, 10)
	for name, program := range map[string][]string{"released": {"shareable", size}, "dma-buf": {"shareable", size, "dma-buf"}, "ipc": {"handles", size}} {
		check(t, name, 6*gib, nil, func(t *trial) {
			var contexts uint64
			t.inside(func(t *trial) { contexts = t.shareMemory("natively", bytes, program) })
			t.open(contexts + bytes + bytes/2)
			t.shareMemory("in a job", bytes, program)
			t.checkNothingLeft()
		})
	}
}

// shareMemory runs the program shareable or handles, and notes at each step what the driver and ration count beyond
// the contexts. It returns what the driver counts for these.
func (t *trial) shareMemory(where string, bytes uint64, program []string) (contexts uint64) {
	var free, counted, makers, others uint64 // makers: the maker's context; others: the other importer's
	var wrong []string
	t.start(nil, t.native(program[0], program[1:]...)...)
	t.eachStep(func(steps []step) {
		s := steps[0]
		maker, err := strconv.Atoi(s.values["maker"])
		t.must(err)
		other, _ := strconv.Atoi(s.values["other"]) // 0: there is none
		now, err := t.driver.Free(t.device)
		t.must(err)
		listed, reachable := t.listed(), s.bytes(t, "reachable")
		if s.name == "made" {
			contexts, free, counted = t.listedSum()-bytes, now+bytes, t.jobUsed()-min(bytes, t.jobUsed())
			makers, others = listed[maker]-bytes, listed[other]
		}
		switch s.name {
		case "kept": // the maker has ended
			counted -= min(makers, counted)
		case "left": // the other importer has ended
			counted -= min(others, counted)
		}
		line := fmt.Sprintf("%d MiB reachable; by the driver %d MiB for the maker, %d MiB for the other importer, %d MiB for all others, %+d MiB for the device; %s",
			reachable/mib, listed[maker]/mib, listed[other]/mib, (t.listedSum()-listed[maker]-listed[other])/mib, (int64(free)-int64(now))/int64(mib), s.text())
		if t.job.Name == "" {
			t.Logf("%s, %s: %s", where, s.name, line)
			return
		}
		_, err = t.readPIDs()
		t.must(err)
		held := int64(t.jobUsed()) - int64(counted)
		t.Logf("%s, %s: %s; by ration %+d MiB", where, s.name, line, held/int64(mib))
		// At orphan and at left the driver counts it for the importer, which charges it at its next reading.
		if s.name != "orphan" && s.name != "left" && held < int64(reachable)-int64(lazyLoad) || s.name == "ended" && held > int64(lazyLoad) {
			wrong = append(wrong, fmt.Sprintf("%s (%d MiB)", s.name, held/int64(mib)))
		}
		expect.Must(t, s.name != "released" || s.values["again"] == "2", "as much again was granted while a descriptor kept the first")
	})
	expect.Must(t, len(wrong) <= 0, "reachable memory is not counted, or too much is, at", strings.Join(wrong, ", "))
	return contexts
}

// jobUsed returns what ration counts for the job on the tested device, or 0 without a job.
func (t *trial) jobUsed() (used uint64) {
	t.Helper()
	if t.job.Name == "" {
		return 0
	}
	status := node.ReadJob(t.job, node.Options{})
	t.must(status.Err())
	for _, p := range status.Processes {
		for _, h := range p.Holdings {
			if h.Device == t.device {
				used += h.Total
			}
		}
	}
	return used
}
