package gputest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
)

// TestPlaced checks that the driver shows a job its own devices only: it must take the list from ration and
// not from the program's environment. One GPU is enough, because a job can be on another that does not exist.
func TestPlaced(t *testing.T) {
	const noDevice, notFound = 100, 6 // of CUDA and of NVML
	check(t, "visible", 0, []string{python}, func(t *trial) {
		library, err := exec.Command(t.file("ration"), "library").Output()
		t.must(err)
		for name, c := range map[string]struct {
			here     bool   // the job is on the device under test
			variable string // CUDA_VISIBLE_DEVICES of the program
			want     [4]uint64
		}{
			"placed-here":      {true, "0", [4]uint64{0, 1, 1, 0}},
			"placed-here-none": {true, "1", [4]uint64{noDevice, 0, 1, 0}},
			"placed-elsewhere": {false, "0", [4]uint64{noDevice, 0, 0, notFound}},
		} {
			path, err := job.MakeFolder(name)
			t.must(err)
			defer os.RemoveAll(filepath.Dir(path)) // no later check has to make room for it
			at := t.device
			if !c.here {
				at = abi.Devices - 1
			}
			var limits region.Limits
			limits.Memory[at] = abi.MakeLimit(gib)
			r, err := region.Open(path, region.Options{Limits: limits.Restrict(region.PlaceAt(at))})
			t.must(err)
			d := t.driver.Devices[t.device]
			words, _ := d.UUIDWords()
			t.must(r.NameDevice(t.device, words, uint64(d.Total)))
			t.must(r.Close())
			s := t.start([]string{job.EnvRegion + "=" + path, "LD_PRELOAD=" + strings.TrimSpace(string(library)), "CUDA_VISIBLE_DEVICES=" + c.variable},
				t.script("visible", d.UUID)...).at("read")
			got := [4]uint64{s.bytes(t, "start"), s.bytes(t, "cuda"), s.bytes(t, "nvml"), s.bytes(t, "found")}
			expect.Must(t, got == c.want, name, "cuInit, devices in CUDA, in NVML, and the UUID in NVML:", got, "not", c.want)
		}
		t.note("the driver's list is ration's")
	})
}
