package region

import (
	"errors"
	"path/filepath"
	"testing"

	"ration/check/expect"
)

func TestName(t *testing.T) {
	r, err := Open(filepath.Join(t.TempDir(), "region"), Options{})
	expect.OK(t, err)
	defer r.Close()
	for range 2 { // the same name again will do
		expect.OK(t, r.NameDevice(3, [2]uint64{5, 7}, 1<<30))
	}
	if l := &r.limits.Device[3]; l.UUID != [2]uint64{5, 7} || l.Total != 1<<30 {
		t.Errorf("got %x, %d", l.UUID, l.Total)
	}
	for _, uuid := range [][2]uint64{{1, 7}, {5, 8}, {5, 0}} {
		if err := r.NameDevice(3, uuid, 0); !errors.Is(err, ErrDevice) {
			t.Errorf("%x: got %v, want ErrDevice", uuid, err)
		}
	}
	err = r.NameDevice(16, [2]uint64{1, 1}, 0)
	expect.True(t, errors.Is(err, ErrDevice), err, "want ErrDevice")
}
