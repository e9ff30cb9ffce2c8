package region

import (
	"fmt"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

// One look at a job, as ration ps takes it: mapped, and copied.
func BenchmarkLook(b *testing.B) {
	for _, slots := range []int{1, 8, 100} {
		path := fmt.Sprintf("%s/region%d", b.TempDir(), slots)
		r, err := Open(path, Options{Limits: limited(1 << 40)})
		expect.OK(b, err)
		for range slots {
			s, err := r.Claim("bench")
			expect.OK(b, err)
			expect.OK(b, s.Charge(0, abi.Data, MiB))
		}
		for name, open := range map[string]func(string) (*Region, error){"mapped": OpenMapped, "copied": OpenReadOnly} {
			b.Run(fmt.Sprintf("%s/%d", name, slots), func(b *testing.B) {
				for b.Loop() {
					v, err := open(path)
					expect.OK(b, err)
					_, _ = v.Processes()
					_, _ = v.Refusals()
					for d := range abi.Devices {
						_, _ = v.Holdings(d, nil)
					}
					_ = v.Close()
				}
			})
		}
		_ = r.Close()
	}
}
