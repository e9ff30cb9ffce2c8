package launch

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
)

func TestDefaultName(t *testing.T) {
	for command, want := range map[string]string{
		"/usr/bin/python3": "python3-", "./my train.sh": "my_train.sh-", "...": "job-", "-x": "x-", "Ünïcode": "_n_code-",
		strings.Repeat("x", 100): strings.Repeat("x", 40) + "-",
	} {
		got := defaultName(command)
		expect.True(t, strings.HasPrefix(got, want), command, got, want, "and a PID")
		expect.Equal(t, limit.CheckName("", got), nil)
	}
}

func TestEnvironment(t *testing.T) {
	e := environment{"A=1", "B=2", "A=3", "C"}
	e.set("A", "4")
	want := environment{"B=2", "C", "A=4"}
	expect.True(t, slices.Equal(e, want), e, want)
	expect.True(t, e.get("B") == "2" && e.get("D") == "", e.get("B"), "and", e.get("D"))
	for _, tt := range [][3]string{{"", "", ""}, {"a", "", "a"}, {"", "b", "b"}, {"a", "b", "a:b"}} {
		expect.Equal(t, joinPaths(tt[0], tt[1]), tt[2])
	}
}

// TestLimits has machines that the stand-in driver cannot have.
func TestLimits(t *testing.T) {
	plan := func(mem string) Plan {
		set, err := limit.ParseMemorySet("--mem", mem)
		expect.OK(t, err)
		return Plan{Settings: limit.Settings{Limits: limit.Limits{Memory: set}}, Sources: Sources{Memory: "--mem", Compute: "--compute", ComputeMax: "--compute-max"}, Warn: func(string) {}}
	}
	whole := &gpu.Driver{Devices: []gpu.Device{{Name: "big", Total: 80 * limit.GiB}, {Index: 1, Name: "small", Total: 8 * limit.GiB}}}
	parts := &gpu.Driver{Devices: []gpu.Device{{Total: 80 * limit.GiB, MIG: true}}}

	l, err := plan("50%,1=none").limits(whole, nil)
	expect.True(t, err == nil && l.Memory[0] == abi.MakeLimit(40<<30) && l.Memory[1] == abi.Unlimited && l.Memory[2] == 0, l.Memory, err)
	// The job cannot use devices that its limits do not name, unless they say so. HAMi-core's variables mean only those that they name.
	l, err = plan("1=1g").limits(whole, nil)
	expect.True(t, err == nil && l.Memory[0] == abi.MakeLimit(0) && l.Memory[0].Limited() && l.Memory[1] == abi.MakeLimit(1<<30) && l.Memory[2] == 0, l.Memory, err)
	l, err = plan("1=1g,others=none").limits(whole, nil)
	expect.True(t, err == nil && l.Memory[0] == abi.Unlimited && l.Memory[1] == abi.MakeLimit(1<<30), l.Memory, err)
	hami := plan("1=1g")
	hami.Sources.Memory = limit.EnvMemory
	l, err = hami.limits(whole, nil)
	expect.True(t, err == nil && l.Memory[0] == 0 && l.Memory[1] == abi.MakeLimit(1<<30), l.Memory, err)
	for visible, good := range map[string]bool{"": true, "1": true, "0,1": true, "0": false, "0,2": false, "GPU-1234": true} {
		err := plan("1=1g").checkVisible(visible)
		expect.True(t, (err == nil) == good, visible, err)
		expect.True(t, hami.checkVisible(visible) == nil && plan("1g").checkVisible(visible) == nil, visible)
	}
	_, err = plan("2=1g").limits(whole, nil)
	expect.True(t, err != nil && strings.HasPrefix(err.Error(), `--mem="2=1g": memory limit 2=1g: no such device (nvidia-smi lists 2 GPUs, the first is 0)`),
		err, "for a device that is not there")
	_, err = plan("10g").limits(whole, nil)
	expect.True(t, err != nil && strings.Contains(err.Error(), "device 1 (small) has 8 GiB (use at most 8g"),
		err, "for more than a device has")
	// Only the processes know the size of a MIG device.
	l, err = plan("50%").limits(parts, nil)
	expect.True(t, err == nil && l.Memory[0] == 0, l.Memory, err)
	standing := plan("50%") // whose processes have no environment of ours to know it from
	standing.standing = true
	l, err = standing.limits(parts, nil)
	expect.True(t, err != nil, "a share of a MIG device became", l.Memory)
	l, err = plan("10g").limits(parts, nil)
	expect.True(t, err == nil && l.Memory[0] == abi.MakeLimit(10<<30) && l.Memory[15] == l.Memory[0], l.Memory, err)
}

// A share and a cap are in the region whether the devices are known or not; 0 is the
// decision to have none.
func TestComputeLimits(t *testing.T) {
	set := func(text string) limit.Set[limit.Compute] {
		s, err := limit.ParseComputeSet("--compute", text)
		expect.OK(t, err)
		return s
	}
	plan := Plan{Sources: Sources{Compute: "--compute", ComputeMax: "--compute-max"}, Warn: func(string) {},
		Settings: limit.Settings{Limits: limit.Limits{Compute: set("30,1=none"), ComputeMax: set("1=50")}, Round: 5000}}
	whole := &gpu.Driver{Devices: []gpu.Device{{Total: limit.GiB}, {Index: 1, Total: limit.GiB}}}
	for _, driver := range []*gpu.Driver{whole, nil, {Devices: []gpu.Device{{MIG: true}}}} {
		l, err := plan.limits(driver, gpu.ErrNoDriver)
		expect.True(t, err == nil && l.Compute[0] == 30 && l.Compute[1] == abi.ComputeNone && l.ComputeMax[0] == 0 && l.ComputeMax[1] == 50 && l.Round == 5000, l.Compute, l.ComputeMax, l.Round, err)
	}
	plan.Settings.ComputeMax = set("2=50")
	_, err := plan.limits(whole, nil)
	expect.True(t, err != nil && strings.HasPrefix(err.Error(), `--compute-max="2=50%": compute limit 2=50%: no such device`),
		err, "for a device that is not there")
}

const (
	uuidA = "GPU-00000000-0000-0001-0000-000000000002"
	uuidB = "GPU-00000000-0000-0003-0000-000000000004"
)

// costs returns the costs of contexts that take so many MiB, by device number.
func costs(t *testing.T, mib map[int]uint64, uuids ...string) (c region.Costs) {
	t.Helper()
	for i, uuid := range uuids {
		words, ok := gpu.Device{UUID: uuid}.UUIDWords()
		expect.Must(t, ok, uuid)
		c.Device[i] = abi.MakeContextCost(words, mib[i]<<20)
	}
	return c
}

// TestCostsAreInherited launches jobs one after the other: each gets the costs that
// earlier ones have measured.
func TestCostsAreInherited(t *testing.T) {
	t.Setenv(job.EnvFolder, t.TempDir())
	t.Setenv(EnvRegion, "")
	launch := func(name string) *region.Region {
		t.Helper()
		p := Plan{Name: name, Command: []string{"true"}, Warn: func(string) {}}
		j := &Job{args: p.Command}
		expect.OK(t, p.setUp(j, nil, gpu.ErrNoDriver))
		r, err := region.Open(j.Lock.Job.Path, region.Options{NoCreate: true})
		expect.OK(t, err)
		j.Lock.Release()
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	has := func(r *region.Region, want region.Costs) {
		t.Helper()
		got, err := r.Costs()
		expect.True(t, err == nil && got == want, got, err, want)
	}

	first := launch("first")
	has(first, region.Costs{})
	want := costs(t, map[int]uint64{0: 518, 1: 300}, uuidA, uuidB)
	want.Names = abi.MakeNVMLPIDs(77, true)
	expect.OK(t, first.OfferCosts(want))
	has(launch("second"), want)
	// The ended job of the same name is removed when this one is created.
	has(launch("second"), want)

	// A region that all users may write is not trusted, and a damaged one is skipped.
	for _, name := range []string{"first", "second"} {
		path, err := job.RegionPath(name)
		expect.OK(t, err)
		expect.OK(t, os.Chmod(path, 0o666))
	}
	path, err := job.MakeFolder("rubbish")
	expect.OK(t, err)
	expect.OK(t, os.WriteFile(path, []byte("rubbish"), 0o600))
	has(launch("third"), region.Costs{})
}

func TestInherit(t *testing.T) {
	newer, older := costs(t, map[int]uint64{0: 1}, uuidA), costs(t, map[int]uint64{0: 2, 1: 3}, uuidA, uuidB)
	all := []region.Costs{newer, older}
	known := &gpu.Driver{Devices: []gpu.Device{{UUID: uuidB}, {Index: 1, UUID: uuidA}}}
	got, want := mergeCosts(all, known), costs(t, map[int]uint64{0: 3, 1: 1}, uuidB, uuidA)
	expect.Equal(t, got, want, "want each device's own newest")
	got, want = mergeCosts(all, nil), costs(t, map[int]uint64{0: 1, 1: 3}, uuidA, uuidB)
	expect.Equal(t, got, want, "without a driver, those of the same number")
	expect.Equal(t, mergeCosts(nil, known), (region.Costs{}), "without earlier costs")
}

// Only the newest few regions are read, however many there are.
func TestEarlierCostsAreBounded(t *testing.T) {
	t.Setenv(job.EnvFolder, t.TempDir())
	for i := range maxCostRegions + 2 {
		path, err := job.MakeFolder("job" + string(rune('a'+i)))
		expect.OK(t, err)
		r, err := region.Open(path, region.Options{})
		expect.OK(t, err)
		expect.OK(t, r.OfferCosts(costs(t, map[int]uint64{0: uint64(i + 1)}, uuidA)))
		expect.OK(t, r.Close())
		at := time.Unix(int64(1000+i), 0)
		expect.OK(t, os.Chtimes(path, at, at))
	}
	got := earlierCosts()
	expect.True(t, len(got) == maxCostRegions && got[0] == costs(t, map[int]uint64{0: maxCostRegions + 2}, uuidA), got)
	// A region that others can write does not count, and takes no other's place.
	newest, err := job.Find("job" + string(rune('a'+maxCostRegions+1)))
	expect.OK(t, err)
	expect.OK(t, os.Chmod(newest.Path, 0o666))
	got = earlierCosts()
	expect.True(t, len(got) == maxCostRegions && got[0] == costs(t, map[int]uint64{0: maxCostRegions + 1}, uuidA), got)
}
