package region

import (
	"os"
	"path/filepath"
	"testing"

	"ration/internal/abi"
)

func TestPast(t *testing.T) {
	r, err := Open(filepath.Join(t.TempDir(), "region"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	slot, err := r.Claim("gone")
	if err != nil {
		t.Fatal(err)
	}
	if err := slot.Charge(2, abi.Data, 1<<20); err != nil {
		t.Fatal(err)
	}
	if past, err := r.Departed(2, nil); err != nil || len(past) != 0 {
		t.Errorf("got %v, %v of one that is here", past, err)
	}
	if err := slot.Leave(); err != nil {
		t.Fatal(err)
	}
	past, err := r.Departed(2, nil)
	if err != nil || len(past) != 1 || past[0].PID != os.Getpid() || past[0].Name != "gone" || past[0].Peak != 1<<20 {
		t.Errorf("got %+v, %v, want one that had 1 MiB", past, err)
	}
	if past, err := r.Departed(1, nil); err != nil || len(past) != 0 {
		t.Errorf("got %v, %v of a device it never had", past, err)
	}
	if next, err := r.Claim("next"); err != nil {
		t.Fatal(err)
	} else if past, err := r.Departed(2, nil); err != nil || len(past) != 0 && next.Index() == slot.Index() {
		t.Errorf("got %v, %v after its slot was taken", past, err)
	}
}
