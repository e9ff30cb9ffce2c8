package region

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/abi"
)

func TestCostsAreOffered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	r, err := Open(path, Options{})
	must(t, err)
	defer r.Close()
	c, err := ReadCosts(path)
	expect.True(t, err == nil && c == (Costs{}), "a new region remembers", c, err)
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
	expect.Equal(t, got, want)
	expect.Equal(t, got.Device[3].Of(uuid), 518*MiB, "a context is said to take")
	expect.Equal(t, got.Device[3].Of([2]uint64{2, 1}), 0, "and the same on another device")
}

func TestCostsNeedTrust(t *testing.T) {
	testenv.NeedFaultAddress(t)
	path := filepath.Join(t.TempDir(), "region")
	r, err := Open(path, Options{})
	must(t, err)
	defer r.Close()
	must(t, os.Chmod(path, 0o666))
	_, err = ReadCosts(path)
	expect.True(t, errors.Is(err, ErrOwner), "a region that anybody writes is believed", err)
	must(t, os.Chmod(path, 0o600))
	_, err = ReadCosts(path)
	expect.Equal(t, err, nil)

	look, err := OpenReadOnly(path)
	must(t, err)
	defer look.Close()
	err = look.OfferCosts(Costs{})
	expect.True(t, errors.Is(err, ErrReadOnly), "who only looks may write", err)
	_, err = ReadCosts(filepath.Join(t.TempDir(), "none"))
	expect.True(t, err != nil, "there is no region, and no error")
	must(t, os.Truncate(path, 4096))
	_, err = r.Costs()
	expect.True(t, errors.Is(err, ErrDamaged), "a region that was cut short remembers", err)
}
