package gputest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"ration/internal/gpu"
)

func TestChooseDevice(t *testing.T) {
	devices := []gpu.Device{{Index: 0, UUID: "GPU-aa"}, {Index: 1, UUID: "GPU-bb", MIG: true}, {Index: 2, UUID: "GPU-cc"}}
	for _, c := range []struct {
		asked   int
		visible string
		want    int // -1: an error
	}{
		{AnyDevice, "", 0},
		{AnyDevice, "2", 2},
		{AnyDevice, "2,0", 2},
		{AnyDevice, "GPU-cc,GPU-aa", 2},
		{AnyDevice, "GPU-c", 2},
		{AnyDevice, "7", 0},
		{AnyDevice, "GPU-dd", 0},
		{AnyDevice, "1", -1}, // divided
		{AnyDevice, "MIG-ee", -1},
		{0, "2", 0},
		{0, "MIG-ee", 0},
		{1, "", -1},
		{2, "0", 2},
		{3, "", -1},
		{-2, "", -1},
	} {
		got, err := chooseDevice(devices, c.asked, c.visible)
		if err != nil {
			got = -1
		}
		if got != c.want {
			t.Errorf("%+v: %d, %v", c, got, err)
		}
	}
	if _, err := chooseDevice(nil, AnyDevice, ""); err == nil {
		t.Error("a device was chosen though there is none")
	}
}

func TestEnviron(t *testing.T) {
	for _, entry := range []string{"RATION_LOG=info", "CUDA_DEVICE_MEMORY_LIMIT=1g", "CUDA_VISIBLE_DEVICES=5", "CUDA_DEVICE_ORDER=FASTEST_FIRST",
		"PYTORCH_CUDA_ALLOC_CONF=x", "PYTORCH_ALLOC_CONF=x", "XLA_FLAGS=x", "LIBCUDA_LOG_LEVEL=4", "LOG_LEVEL=4",
		"PYTORCH_NO_CUDA_MEMORY_CACHING=1", "NCCL_DEBUG=INFO",
		"CUDA_HOME=/cuda", "CUDA_MODULE_LOADING=EAGER", "PYTORCH_JIT=1"} {
		key, value, _ := strings.Cut(entry, "=")
		t.Setenv(key, value)
	}
	env := (&Machine{device: 3, scratch: "/scratch", Env: []string{"A=b"}}).environ("C=d")
	for _, want := range []string{"CUDA_HOME=/cuda", "CUDA_MODULE_LOADING=EAGER", "PYTORCH_JIT=1", "CUDA_VISIBLE_DEVICES=3", "CUDA_DEVICE_ORDER=PCI_BUS_ID",
		"CUDA_CACHE_PATH=/scratch/cache/CUDA_CACHE_PATH", "A=b", "C=d"} {
		if !slices.Contains(env, want) {
			t.Errorf("%s is not there", want)
		}
	}
	for _, entry := range env {
		for _, not := range []string{"RATION_LOG=", "CUDA_DEVICE_MEMORY", "CUDA_VISIBLE_DEVICES=5", "CUDA_DEVICE_ORDER=F", "PYTORCH_CUDA", "PYTORCH_ALLOC", "XLA_", "LIBCUDA_", "LOG_LEVEL=", "PYTORCH_NO", "NCCL_"} {
			if strings.HasPrefix(entry, not) {
				t.Errorf("%s is there", entry)
			}
		}
	}
}

func TestFreePorts(t *testing.T) {
	free, err := freePorts(3)
	slices.Sort(free)
	if err != nil || len(slices.Compact(free)) != 3 {
		t.Error(free, err)
	}
}

// A process that outlives the programs of a trial is killed with the trial, whatever
// its parent is by then. Processes with other marks are not.
func TestMarked(t *testing.T) {
	m := &Machine{scratch: t.TempDir()}
	orphan := func(s *Trial) int {
		t.Helper()
		p, err := s.start(nil, "sh", "-c", `setsid sh -c 'echo step left child=$$; exec >&- 2>&-; kill -STOP $$' &`)
		if err != nil {
			t.Fatal(err)
		}
		step, err := p.At("left")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		pid, err := step.Bytes("child")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(stepWithin); err != nil {
			t.Fatal(err)
		}
		return int(pid)
	}
	one, other := m.newTrial(true), m.newTrial(true)
	ours, theirs := orphan(one), orphan(other)
	if !marked(ours, one.mark) || !marked(theirs, other.mark) || marked(os.Getpid(), one.mark) {
		t.Error("processes have wrong marks")
	}
	killAll := func(s *Trial) {
		t.Helper()
		if ok, err := eventually(func() (bool, error) { return killMarked(s.mark) == 0, nil }); !ok || err != nil {
			t.Error("marked processes are left")
		}
	}
	killAll(one)
	if marked(ours, one.mark) {
		t.Error("it is still alive")
	}
	if !marked(theirs, other.mark) {
		t.Error("a process of another trial was killed")
	}
	killAll(other)
}
