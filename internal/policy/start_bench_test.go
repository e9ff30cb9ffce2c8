package policy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/embedded"
)

// BenchmarkStart measures what the library costs a program that never uses CUDA: true,
// without it, with an empty library, and with ours.
func BenchmarkStart(b *testing.B) {
	b.Setenv(embedded.EnvFolder, b.TempDir())
	dir, err := embedded.Ration.Unpack()
	if err != nil {
		b.Skip(err)
	}
	empty := filepath.Join(b.TempDir(), "empty.so")
	source := empty + ".c"
	expect.OK(b, os.WriteFile(source, []byte("int ration_nothing;\n"), 0o644))
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", empty, source).CombinedOutput(); err != nil {
		b.Skipf("no compiler: %v: %s", err, out)
	}
	kinds := []struct{ name, library string }{{"without", ""}, {"empty", empty}, {"with", filepath.Join(dir, "libration.so")}}
	took := make([][]time.Duration, len(kinds))
	for b.Loop() { // in turns, as other work on the machine comes and goes
		for i, kind := range kinds {
			began := time.Now()
			p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{Env: []string{"LD_PRELOAD=" + kind.library}})
			expect.OK(b, err)
			state, err := p.Wait()
			expect.Must(b, err == nil && state.Success(), state, err)
			took[i] = append(took[i], time.Since(began))
		}
	}
	for i, kind := range kinds { // a tenth are shorter: on a busy machine the median is what others do
		slices.Sort(took[i])
		b.ReportMetric(float64(took[i][len(took[i])/10].Microseconds()), kind.name+"-p10-us")
	}
}
