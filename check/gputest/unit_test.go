//go:build !bundle

package gputest

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"ration/check/benchpage"
	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/gpu"
)

// recorder is a test that may fail or be skipped without harm.
type recorder struct {
	testing.TB
	failed, skipped bool
}

func (r *recorder) Fatal(...any) { r.failed = true; runtime.Goexit() }
func (r *recorder) Skip(...any)  { r.skipped = true; runtime.Goexit() }
func (r *recorder) Failed() bool { return r.failed }

// try runs a part of a check in a trial without a driver, and returns what became of it.
func try(t *testing.T, part func(*trial)) (*recorder, *trial) {
	t.Helper()
	r := &recorder{TB: t}
	trial := (&testbed{scratch: t.TempDir()}).newTrial(r)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		part(trial)
	}()
	<-ended
	for _, p := range trial.programs {
		p.Close()
	}
	return r, trial
}

func TestChooseDevice(t *testing.T) {
	devices := []gpu.Device{{Index: 0, UUID: "GPU-aa"}, {Index: 1, UUID: "GPU-bb", MIG: true}, {Index: 2, UUID: "GPU-cc"}}
	for visible, want := range map[string]int{ // -1 is an error
		"": 0, "0": 0, "2": 2, "2,0": 2, "GPU-cc,GPU-aa": 2, "GPU-c": 2, "7": -1, "GPU-dd": -1, "1": -1, "MIG-ee": -1,
	} {
		got, err := chooseDevice(devices, visible)
		if err != nil {
			got = -1
		}
		expect.Equal(t, got, want, visible, err)
	}
	_, err := chooseDevice(nil, "")
	expect.True(t, err != nil, "a device was chosen though there is none")
}

func TestEnviron(t *testing.T) {
	out := []string{"RATION_LOG=info", "CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_VISIBLE_DEVICES=5", "CUDA_DEVICE_ORDER=FASTEST_FIRST", "PYTORCH_CUDA_ALLOC_CONF=x",
		"PYTORCH_ALLOC_CONF=x", "XLA_FLAGS=x", "LIBCUDA_LOG_LEVEL=4", "LOG_LEVEL=4", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", "NCCL_DEBUG=INFO"}
	in := []string{"CUDA_HOME=/cuda", "CUDA_MODULE_LOADING=EAGER", "PYTORCH_JIT=1"}
	for _, entry := range slices.Concat(in, out) {
		key, value, _ := strings.Cut(entry, "=")
		t.Setenv(key, value)
	}
	env := (&testbed{device: 3, scratch: "/scratch", vars: []string{"A=b"}}).environ("C=d")
	for _, entry := range append(in, "CUDA_VISIBLE_DEVICES=3", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_CACHE_PATH=/scratch/cache/CUDA_CACHE_PATH", "A=b", "C=d") {
		expect.True(t, slices.Contains(env, entry), entry, "is not there")
	}
	for _, entry := range out {
		expect.True(t, !slices.Contains(env, entry), entry, "is there")
	}
}

// All that a program may print, and how it may end.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name, script    string
		part            func(*program)
		failed, skipped bool
	}{
		{"steps", `echo noise; echo step one data=5; read line; echo step two; read line`, func(p *program) {
			expect.Equal(t, p.at("one").bytes(p.t, "data"), 5)
			p.Tell("")
			p.at("two")
			p.finish()
			expect.Equal(t, p.Log(), "noise", "its log is")
		}, false, false},
		{"the end", "exit 0", func(p *program) { p.finish() }, false, false},
		{"another step", "echo step two", func(p *program) { p.at("three") }, true, false},
		{"an early end", "exit 0", func(p *program) { p.at("three") }, true, false},
		{"a late end", "echo step one", func(p *program) { p.finish() }, true, false},
		{"a value that is no number", "echo step one data=x", func(p *program) { p.at("one").bytes(p.t, "data") }, true, false},
		{"unsuited", "echo skip not here", func(p *program) { p.step() }, false, true},
		{"failure", "echo fail it is broken; exit 1", func(p *program) { p.step() }, true, false},
		{"exit status", "exit 7", func(p *program) { p.step() }, true, false},
		{"an answer instead of a step", "echo ok 1", func(p *program) { p.step() }, true, false},
		{"no name", "echo step", func(p *program) { p.step() }, true, false},
		{"numbers", "read line; echo ok 1.5 mean_us=2", func(p *program) {
			n := p.ask(2, "go")
			expect.True(t, slices.Equal(n, []float64{1.5, 2}), n)
		}, false, false},
		{"too few numbers", "read line; echo ok 1", func(p *program) { p.ask(2, "go") }, true, false},
		{"no number", "read line; echo ok 1 x", func(p *program) { p.ask(1, "go") }, true, false},
		{"no memory", "read line; echo oom", func(p *program) { p.ask(0, "go") }, true, false},
	} {
		r, _ := try(t, func(t *trial) { c.part(t.start(nil, "sh", "-c", c.script)) })
		expect.True(t, r.failed == c.failed && r.skipped == c.skipped, c.name, "failed", r.failed, "skipped", r.skipped)
	}
}

func TestDifferences(t *testing.T) {
	large := account{pid: 1, ration: 100*gib + 500*mib, driver: 100 * gib} // a hundredth of it is more
	most, more := account{pid: 4, ration: gib, driver: gib + 16*mib}, account{pid: 5, ration: gib + 17*mib, driver: gib}
	small := account{pid: 2, ration: 100 * mib, driver: 500 * mib}
	smaller := account{pid: 3, ration: 100 * mib, driver: 120 * mib}
	for _, c := range []struct {
		all     []account
		largest int64
		worst   int
	}{
		{nil, 0, 0},
		{[]account{large}, int64(500 * mib), 0},
		{[]account{most}, -int64(16 * mib), 0},
		{[]account{more}, int64(17 * mib), 5},
		{[]account{small, large}, int64(500 * mib), 2},
		{[]account{smaller, small, smaller}, -int64(400 * mib), 2},
	} {
		largest, worst := differences(c.all)
		if worst == nil {
			worst = &account{}
		}
		expect.True(t, largest == c.largest && worst.pid == c.worst, c, largest, "pid", worst.pid)
	}
}

func TestCheckHeld(t *testing.T) {
	all := []account{{data: 100 * mib, module: 64 * mib}, {data: 28 * mib}}
	for text, c := range map[string]struct {
		key, value string
		want       bool
	}{
		"all of it":       {"data", "134217728", true},
		"rounded up":      {"data", "134000000", true},
		"too little":      {"data", "134217729", false},
		"too much":        {"data", "1000", false},
		"another kind":    {"module", "67108864", true},
		"less of it":      {"module", "67108865", false},
		"not a number":    {"data", "x", false},
		"nothing is said": {"other", "1", true},
	} {
		err := checkHeld(step{"held", map[string]string{c.key: c.value}}, all)
		expect.Equal(t, (err == nil), c.want, text, err)
	}
}

// Few readings of a real GPU are an error, and so is an observer that failed or a limit
// that was exceeded at rest.
func TestCheckObserved(t *testing.T) {
	for _, c := range []struct {
		name     string
		readings int
		err      error
		atRest   uint64
		fails    bool
	}{
		{"enough", minReadings, nil, gib, false},
		{"too few", minReadings - 1, nil, gib, true},
		{"exceeded at rest", minReadings, nil, 2 * gib, true},
		{"observer failed", minReadings, io.ErrUnexpectedEOF, gib, true},
	} {
		o := &countObserver{differences: make([]float64, c.readings), loop: observer.Start(0, func() error { return c.err })}
		if c.err != nil {
			<-o.loop.Ended()
		}
		r, trial := try(t, func(t *trial) {
			t.limit, t.mostAtRest = gib, c.atRest
			t.checkObserved(o, 1)
			t.checkRunning(o, 1)
		})
		expect.Equal(t, r.failed, c.fails, c.name, trial.summary())
	}
}

func TestTraces(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "trace")
	err := errors.Join(os.WriteFile(prefix+".1", []byte("dlsym cuMemAlloc_v2 0 0 2\nproc2 cuMemAlloc 3020 0 3\n"), 0o600),
		os.WriteFile(prefix+".2", []byte("proc2 cuMemAlloc 3020 0 4\nproc2 cuMemFree 3020 0 0\ncut off"), 0o600))
	calls, readErr := readTraces(prefix)
	expect.True(t, err == nil && readErr == nil && calls["cuMemAlloc"] == 7 && calls["cuMemAlloc_v2"] == 2 && len(calls) == 3,
		calls, err, readErr)
	_, err = readTraces(prefix + "-not")
	expect.True(t, err != nil, "no traces are no error")
	known := knownCalls("| `cuMemAlloc` | yes |\n- `cuMemDiscard*`: no\n")
	expect.True(t, known("cuMemAlloc") && known("cuMemDiscardBatchAsync") && !known("cuMemAllocNew"), "wrong calls are known")
}

func TestMayAllocate(t *testing.T) {
	for _, name := range strings.Fields(`cuMemAlloc cuMemAlloc_v2 cuMemAllocAsync_ptsz cuMemAllocHost cuMemCreate cuMemMap cuMemAddressReserve
		cuMemRetainAllocationHandle cuMemImportFromShareableHandle cuMemPoolCreate cuArray3DCreate_v2 cuMipmappedArrayCreate
		cuModuleLoadData cuModuleGetFunction cuLibraryLoadData cuLibraryGetModule cuKernelGetFunction cuFuncLoad
		cuCtxCreate_v4 cuGreenCtxCreate cuDevicePrimaryCtxRetain cuGraphAddNode cuGraphAddMemAllocNode cuGraphInstantiateWithFlags
		cuGraphLaunch cuLaunchKernel cuLaunchKernelEx cuMulticastBindMem cuImportExternalMemory cuMemHostRegister_v2`) {
		expect.True(t, mayAllocate(name), name, "could allocate")
	}
	for _, name := range strings.Fields(`cuInit cuCtxGetCurrent cuCtxSetCurrent cuModuleGetLoadingMode cuMemGetAllocationGranularity
		cuMemGetAllocationPropertiesFromHandle cuTensorMapEncodeTiled cuPointerGetAttribute cuFuncGetAttribute cuFuncGetModule
		cuLibraryGetKernel cuLaunchHostFunc cuLaunchHostFunc_ptsz cuStreamCreate cuStreamCreateWithPriority cuEventCreate
		cuEventCreateWithFlags cuEventRecord cuMemFree cuMemcpyAsync cuStreamSynchronize cuLogsRegisterCallback
		cuDeviceRegisterAsyncNotification cuMulticastGetGranularity`) {
		expect.True(t, !mayAllocate(name), name, "cannot allocate")
	}
}

func TestPerSecond(t *testing.T) {
	p := progress{step: 100 * time.Millisecond, counts: []float64{1, 2, 3, 4, 5}}
	for _, c := range []struct{ from, until, want float64 }{{0, .5, 30}, {.2, .4, 35}, {.4, .6, 25}} { // what was not recorded is nothing
		second := float64(time.Second)
		expect.Equal(t, p.perSecond(time.Duration(c.from*second), time.Duration(c.until*second)), c.want, c)
	}
}

// Shares are compared with what was asked for, in points; of more than the whole, by
// weight.
func TestCheckShares(t *testing.T) {
	for _, c := range []struct {
		rates, want []float64
		fails       bool
	}{
		{[]float64{30, 70}, []float64{30, 70}, false},
		{[]float64{28.1, 71.9}, []float64{30, 70}, false},
		{[]float64{27.9, 72.1}, []float64{30, 70}, true},
		{[]float64{1, 2}, []float64{50, 100}, false},
		{[]float64{1, 1}, []float64{50, 100}, true},
		{[]float64{0, 0}, []float64{50, 50}, true},
	} {
		r, trial := try(t, func(t *trial) { t.checkShares("", ratios(c.rates, 100), 2, c.want...) })
		expect.Equal(t, r.failed, c.fails, c.rates, "of", c.want, trial.summary())
	}
	if _, trial := try(t, func(t *trial) { t.checkShares("", ratios([]float64{29, 67}, 100), 2, 30, 70) }); trial.summary() != "30/70: 30.2/69.8, together 96.0 %" {
		t.Errorf("got %q", trial.summary())
	}
	for had, fails := range map[float64]bool{48.1: false, 51.9: false, 47.9: true, 52.1: true} {
		r, _ := try(t, func(t *trial) { t.checkCap(50, had) })
		expect.Equal(t, r.failed, fails, "with a cap of 50 %", had, "failed")
	}
}

// Every member goes first as often as the others.
func TestTurns(t *testing.T) {
	got := slices.Concat(turns(0), turns(1), turns(2))
	expect.True(t, slices.Equal(got, []int{0, 1, 2, 1, 2, 0, 2, 0, 1}), got)
}

func TestRow(t *testing.T) {
	r := series{{100, 102, 98}, {100, 100, 100}, {103, 103, 103}}.row("x", nanoseconds, 1)
	expect.True(t, r.Ratio == 1.03 && r.Noise == 2.0/102 && r.Rounds == 3 && r.More.Median == 3, r)
	if r := (series{}).row("nothing", nanoseconds, 1); math.IsNaN(r.Ratio) || r.Rounds != 0 {
		t.Errorf("got %+v", r)
	}
	// Outliers of the native programs do not improve ration's ratio, and count as noise.
	if r := (series{{100, 150, 100, 150}, {150, 100, 150, 100}, {150, 150, 150, 150}}).row("x", nanoseconds, 1); r.Ratio != 1.5 || r.Noise < 0.3 {
		t.Errorf("got %+v", r)
	}
	c := series{{26}, {28}, {30}}.row("x", nanoseconds, 1000).shown()
	expect.True(t, c.NativeText == "27.0 µs" && c.JobText == "30.0 µs" && c.Native == (benchpage.Spread{Low: 26000, Median: 27000, High: 28000}),
		c)
	c = (series{{7}, {7}, nil}).row("native only", kibibytes, 1).shown()
	expect.True(t, c.NativeText == "7 KiB" && c.JobText+c.More+c.MoreSpread == "", c)
	// A step may make no system call at all: that is a value, unlike memory of which there is none.
	c = (series{{0}, {0}, {0}}).row("calls", systemCalls, 1).shown()
	expect.True(t, c.NativeText == "0.00" && c.JobText == "0.00" && c.More == "+0.00", c)
	c = (series{{4}, {4}, {5}}).row("calls", systemCalls, 1).shown()
	expect.True(t, c.JobText == "5.00" && c.More == "+25.00 %" && c.MoreSpread == "+1.00 … +1.00", c)
}

func TestTargets(t *testing.T) {
	for _, c := range []struct {
		ratio, noise, more float64
		percent, most      float64
		want               string
	}{
		{1.03, 0, 3, 3.5, 0, kept},
		{1.03, 0, 3, 2, 0, missed},
		{1.03, 0, 3, 3.5, 2, missed},
		{1.03, 0, 3, 3.5, 3, kept},
		{1.03, .01, 3, 2, 0, missed},
		{1.03, .04, 3, 2, 0, unclear},
		{1.001, .04, 3, 2, 0, unclear},
		{0.97, .04, -3, 2, 0, unclear},
		{0.9, .04, -3, 2, 0, kept},
		{1.05, .04, 3, 2, 0, missed},
		{1.03, .04, 3, 2, 2, missed}, // the target in units is missed in any case
	} {
		r := row{Ratio: c.ratio, Noise: c.noise, More: benchpage.Spread{Median: c.more}, Unit: nanoseconds}
		expect.Equal(t, r.withTarget(c.percent, c.most).Verdict, c.want, c)
	}
	for _, c := range []struct {
		more, noise float64
		want        string
	}{{20, 0, kept}, {21, 0, missed}, {21, 0.05, unclear}, {60, 0.05, missed}, {-5, 0.5, kept}} {
		r := row{Unit: nanoseconds, Native: benchpage.Spread{Median: 1000}, More: benchpage.Spread{Median: c.more}, Noise: c.noise}
		expect.Equal(t, r.within(20).Verdict, c.want, c.more, "more with noise", c.noise)
	}
}

// Failed checks and missed targets come first, then what was skipped or cannot be told.
func TestReportOrder(t *testing.T) {
	var r results
	for _, verdict := range []string{pass, skip, fail, pass} {
		r.add(verdict, verdict, "")
	}
	for _, verdict := range []string{"", kept, missed, unclear} {
		r.page.Comparisons = append(r.page.Comparisons, benchpage.Comparison{Name: verdict, Verdict: verdict})
	}
	r.sort()
	var got []string
	for _, c := range r.page.Checks {
		got = append(got, c.Name)
	}
	for _, c := range r.page.Comparisons {
		got = append(got, c.Name)
	}
	want := []string{fail, skip, pass, pass, missed, unclear, kept, ""}
	expect.True(t, slices.Equal(got, want), got)
	text := r.totals()
	expect.True(t, strings.HasSuffix(text, "2 passed, 1 failed, 1 were skipped. Target missed: missed. Target cannot tell: cannot tell."),
		text)
}
