package region

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"ration/check/testenv"
	"ration/internal/abi"
)

func TestCostsAreOffered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	r, err := Open(path, Options{})
	must(t, err)
	defer r.Close()
	if c, err := ReadCosts(path); err != nil || c != (Costs{}) {
		t.Errorf("a new region remembers %v, %v", c, err)
	}
	uuid := [2]uint64{1, 2}
	first := Costs{Names: abi.MakeNVMLPIDs(77, true)}
	first.Device[3] = abi.MakeContextCost(uuid, 518*MiB)
	must(t, r.OfferCosts(first))
	second := Costs{Names: abi.MakeNVMLPIDs(78, false)}
	second.Device[3], second.Device[4] = abi.MakeContextCost(uuid, 300*MiB), abi.MakeContextCost(uuid, 400*MiB)
	must(t, r.OfferCosts(second))

	got, err := ReadCosts(path)
	must(t, err)
	want := first // what is there stands
	want.Device[4] = second.Device[4]
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if n := got.Device[3].Of(uuid); n != 518*MiB {
		t.Errorf("a context is said to take %d", n)
	}
	if got.Device[3].Of([2]uint64{2, 1}) != 0 {
		t.Error("and the same on another device")
	}
}

func TestCostsNeedTrust(t *testing.T) {
	testenv.NeedFaultAddress(t)
	path := filepath.Join(t.TempDir(), "region")
	r, err := Open(path, Options{})
	must(t, err)
	defer r.Close()
	must(t, os.Chmod(path, 0o666))
	if _, err := ReadCosts(path); !errors.Is(err, ErrOwner) {
		t.Errorf("a region that anybody writes is believed: %v", err)
	}
	must(t, os.Chmod(path, 0o600))
	if _, err := ReadCosts(path); err != nil {
		t.Error(err)
	}

	look, err := OpenReadOnly(path)
	must(t, err)
	defer look.Close()
	if err := look.OfferCosts(Costs{}); !errors.Is(err, ErrReadOnly) {
		t.Errorf("who only looks may write: %v", err)
	}
	if _, err := ReadCosts(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("there is no region, and no error")
	}
	must(t, os.Truncate(path, 4096))
	if _, err := r.Costs(); !errors.Is(err, ErrDamaged) {
		t.Errorf("a region that was cut short remembers: %v", err)
	}
}
