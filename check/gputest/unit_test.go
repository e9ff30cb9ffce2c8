package gputest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/observer"
)

func TestWithinTolerance(t *testing.T) {
	for _, c := range []struct {
		ration, driver uint64
		want           bool
	}{
		{0, 0, true},
		{gib, gib + 16*mib, true},
		{gib, gib + 17*mib, false},
		{gib + 17*mib, gib, false},
		{100 * gib, 101 * gib, true}, // a hundredth
		{100 * gib, 102 * gib, false},
		{0, 518 * mib, false},
	} {
		if got := (account{ration: c.ration, driver: c.driver}).withinTolerance(); got != c.want {
			t.Errorf("%d and %d: got %v", c.ration, c.driver, got)
		}
	}
}

func TestCheckHeld(t *testing.T) {
	step := func(values ...string) Step {
		s := Step{Name: "held", values: map[string]string{}}
		for _, v := range values {
			key, value, _ := strings.Cut(v, "=")
			s.values[key] = value
		}
		return s
	}
	all := []account{{data: 100 * mib, module: 64 * mib}, {data: 28 * mib}}
	for text, c := range map[string]struct {
		step Step
		want bool
	}{
		"all of it":       {step("data=134217728"), true},
		"rounded up":      {step("data=134000000"), true},
		"too little":      {step("data=134217729"), false},
		"too much":        {step("data=1000"), false},
		"another kind":    {step("module=67108864"), true},
		"less of it":      {step("module=67108865"), false},
		"not a number":    {step("data=x"), false},
		"nothing is said": {step(), true},
	} {
		if err := checkHeld(c.step, all); (err == nil) != c.want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Every member goes first as often as the others.
func TestTurns(t *testing.T) {
	var first [3]int
	for round := range 30 {
		order := turns(round)
		if order[0]+order[1]+order[2] != 3 {
			t.Fatalf("round %d: %v", round, order)
		}
		first[order[0]]++
	}
	if first != [3]int{10, 10, 10} {
		t.Errorf("got %v", first)
	}
}

func TestReadTraces(t *testing.T) {
	prefix := filepath.Join(t.TempDir(), "trace")
	for pid, text := range map[string]string{
		"1": "dlsym cuMemAlloc_v2 0 0 2\nproc2 cuMemAlloc 3020 0 3\n",
		"2": "proc2 cuMemAlloc 3020 0 4\nproc2 cuMemFree 3020 0 0\ncut off",
	} {
		if err := os.WriteFile(prefix+"."+pid, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	calls, err := readTraces(prefix)
	if err != nil || calls["cuMemAlloc"] != 7 || calls["cuMemAlloc_v2"] != 2 || len(calls) != 3 {
		t.Errorf("got %v, %v", calls, err)
	}
	if _, err := readTraces(prefix + "-not"); err == nil {
		t.Error("no traces are no error")
	}
}

func TestKnownCalls(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "coverage.md"), []byte("| `cuMemAlloc` | yes |\n- `cuMemDiscard*`: no\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	known, err := (&Trial{Machine: &Machine{Bundle: Bundle(dir)}}).knownCalls()
	if err != nil || !known("cuMemAlloc") || !known("cuMemDiscardBatchAsync") || known("cuMemAllocNew") {
		t.Error("wrong calls are known", err)
	}
}

// All that a program may print, and how it may end.
func TestProgram(t *testing.T) {
	m := &Machine{scratch: t.TempDir()}
	sh := func(script string) *Program {
		t.Helper()
		p, err := m.start(nil, "sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	p := sh(`echo noise; echo step one data=5; read line; echo step two; read line`)
	step, err := p.At("one")
	if n, bad := step.Bytes("data"); err != nil || bad != nil || n != 5 {
		t.Fatal(step, err, bad)
	}
	p.Next()
	if _, err := p.At("three"); err == nil {
		t.Error("step two was accepted as three")
	}
	if err := p.Finish(); err != nil || p.Log() != "noise" {
		t.Errorf("%v, and its log is %q", err, p.Log())
	}
	for script, want := range map[string]error{
		"echo skip not here": ErrUnsuited,
		"exit 0":             io.EOF,
	} {
		if _, err := sh(script).Step(); !errors.Is(err, want) {
			t.Errorf("%s: %v", script, err)
		}
	}
	for _, script := range []string{"echo fail it is broken; exit 1", "exit 7", "echo ok 1", "echo step"} {
		if _, err := sh(script).Step(); err == nil || errors.Is(err, ErrUnsuited) || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", script, err)
		}
	}
	if f, err := sh("read line; echo ok 1.5 mean_us=2").ask(2, "go"); err != nil || f[0] != 1.5 || f[1] != 2 {
		t.Error(f, err)
	}
	if _, err := sh("read line; echo ok 1").ask(2, "go"); err == nil {
		t.Error("one number was accepted as two")
	}
}

func TestDifferences(t *testing.T) {
	large := account{pid: 1, ration: 100*gib + 500*mib, driver: 100 * gib} // a hundredth of it is more
	small := account{pid: 2, ration: 100 * mib, driver: 500 * mib}
	smaller := account{pid: 3, ration: 100 * mib, driver: 120 * mib}
	for _, c := range []struct {
		all     []account
		largest int64
		worst   int
	}{
		{nil, 0, 0},
		{[]account{large}, int64(500 * mib), 0},
		{[]account{large, small}, int64(500 * mib), 2},
		{[]account{small, large}, int64(500 * mib), 2},
		{[]account{smaller, small, smaller}, -int64(400 * mib), 2},
	} {
		largest, worst := differences(c.all)
		pid := 0
		if worst != nil {
			pid = worst.pid
		}
		if largest != c.largest || pid != c.worst {
			t.Errorf("%v: got %d, pid %d", c, largest, pid)
		}
	}
}

// Few readings of a real GPU are an error, and so is an observer that failed or a limit
// that was exceeded at rest.
func TestCheckObserved(t *testing.T) {
	trial := func() *Trial { return &Trial{Machine: &Machine{}, limit: gib, values: map[string]int64{}} }
	observed := func(readings int, err error) *countObserver {
		o := &countObserver{differences: make([]float64, readings), loop: observer.Start(0, func() error { return err })}
		if err != nil {
			<-o.loop.Ended()
		}
		return o
	}
	if trial().checkRunning(observed(minReadings-1, nil), 1) == nil || trial().checkRunning(observed(minReadings, nil), 1) != nil {
		t.Error("readings are not counted")
	}
	if err := trial().checkObserved(observed(0, nil), 1); err != nil {
		t.Error(err)
	}
	atRest := trial()
	atRest.mostAtRest = 2 * gib
	if atRest.checkObserved(observed(0, nil), 1) == nil {
		t.Error("a limit exceeded at rest is no error")
	}
	if err := trial().checkObserved(observed(0, io.ErrUnexpectedEOF), 1); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
}

func TestMayAllocate(t *testing.T) {
	for _, name := range strings.Fields(`cuMemAlloc cuMemAlloc_v2 cuMemAllocAsync_ptsz cuMemAllocHost cuMemCreate cuMemMap cuMemAddressReserve
		cuMemRetainAllocationHandle cuMemImportFromShareableHandle cuMemPoolCreate cuArray3DCreate_v2 cuMipmappedArrayCreate
		cuModuleLoadData cuModuleGetFunction cuLibraryLoadData cuLibraryGetModule cuKernelGetFunction cuFuncLoad
		cuCtxCreate_v4 cuGreenCtxCreate cuDevicePrimaryCtxRetain cuGraphAddNode cuGraphAddMemAllocNode cuGraphInstantiateWithFlags
		cuGraphLaunch cuLaunchKernel cuLaunchKernelEx cuMulticastBindMem cuImportExternalMemory cuMemHostRegister_v2`) {
		if !mayAllocate(name) {
			t.Errorf("%s could allocate", name)
		}
	}
	for _, name := range strings.Fields(`cuInit cuCtxGetCurrent cuCtxSetCurrent cuModuleGetLoadingMode cuMemGetAllocationGranularity
		cuMemGetAllocationPropertiesFromHandle cuTensorMapEncodeTiled cuPointerGetAttribute cuFuncGetAttribute cuFuncGetModule
		cuLibraryGetKernel cuLaunchHostFunc cuLaunchHostFunc_ptsz cuStreamCreate cuStreamCreateWithPriority cuEventCreate
		cuEventCreateWithFlags cuEventRecord cuMemFree cuMemcpyAsync cuStreamSynchronize cuLogsRegisterCallback
		cuDeviceRegisterAsyncNotification cuMulticastGetGranularity`) {
		if mayAllocate(name) {
			t.Errorf("%s cannot allocate", name)
		}
	}
}
