package observer

import (
	"path/filepath"
	"testing"
	"time"

	"ration/internal/abi"
	"ration/internal/region"
)

func TestWatch(t *testing.T) {
	r, err := region.Open(filepath.Join(t.TempDir(), "region"), region.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, err := r.Claim("test")
	if err != nil {
		t.Fatal(err)
	}
	o := Watch(r, 1, 1<<20, time.Microsecond)
	defer o.Stop()
	if err := s.Charge(1, abi.Data, 2<<20); err != nil {
		t.Fatal(err)
	}
	for o.Changes() == 0 {
		time.Sleep(time.Millisecond)
	}
	o.Stop()
	if o.Passed == 0 || o.Most != 2<<20 || o.Readings < o.Passed {
		t.Errorf("got %d of %d above, the most %d", o.Passed, o.Readings, o.Most)
	}
}
