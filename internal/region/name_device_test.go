package region

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestName(t *testing.T) {
	r, err := Open(filepath.Join(t.TempDir(), "region"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 2 { // the same name again will do
		if err := r.NameDevice(3, [2]uint64{5, 7}, 1<<30); err != nil {
			t.Fatal(err)
		}
	}
	if l := &r.limits.Device[3]; l.UUID != [2]uint64{5, 7} || l.Total != 1<<30 {
		t.Errorf("got %x, %d", l.UUID, l.Total)
	}
	for _, uuid := range [][2]uint64{{1, 7}, {5, 8}, {5, 0}} {
		if err := r.NameDevice(3, uuid, 0); !errors.Is(err, ErrDevice) {
			t.Errorf("%x: got %v, want ErrDevice", uuid, err)
		}
	}
	if err := r.NameDevice(16, [2]uint64{1, 1}, 0); !errors.Is(err, ErrDevice) {
		t.Errorf("got %v, want ErrDevice", err)
	}
}
