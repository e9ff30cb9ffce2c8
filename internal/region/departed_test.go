package region

import (
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

func TestPast(t *testing.T) {
	r, err := Open(filepath.Join(t.TempDir(), "region"), Options{})
	expect.OK(t, err)
	defer r.Close()
	slot, err := r.Claim("gone")
	expect.OK(t, err)
	expect.OK(t, slot.Charge(2, abi.Data, 1<<20))
	past, err := r.Departed(2, nil)
	expect.True(t, err == nil && len(past) == 0, past, err, "of one that is here")
	expect.OK(t, slot.Leave())
	past, err = r.Departed(2, nil)
	expect.True(t, err == nil && len(past) == 1 && past[0].PID == os.Getpid() && past[0].Name == "gone" && past[0].Peak == 1<<20,
		past, err, "want one that had 1 MiB")
	if past, err := r.Departed(1, nil); err != nil || len(past) != 0 {
		t.Errorf("got %v, %v of a device it never had", past, err)
	}
	if next, err := r.Claim("next"); err != nil {
		t.Fatal(err)
	} else if past, err := r.Departed(2, nil); err != nil || len(past) != 0 && next.Index() == slot.Index() {
		t.Errorf("got %v, %v after its slot was taken", past, err)
	}
}
