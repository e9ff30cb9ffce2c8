package region

import (
	"path/filepath"
	"testing"
)

func BenchmarkAttach(b *testing.B) {
	path := filepath.Join("/dev/shm", "ration-bench-attach")
	keep, err := Open(path, Options{Limits: limited(MiB)})
	must(b, err)
	_ = keep.Close()
	for range b.N {
		r, err := Open(path, Options{Limits: limited(MiB)})
		if err != nil {
			b.Fatal(err)
		}
		s, err := r.Claim("x")
		if err != nil {
			b.Fatal(err)
		}
		_ = s.Leave()
		_ = r.Close()
	}
}
