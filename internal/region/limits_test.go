package region

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
)

func TestFirstLimitStands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	for i, c := range []struct {
		bring, have uint64
		differs     bool
	}{
		{0, 0, false},                 // knows of no limit
		{10 * MiB, 10 * MiB, false},   // sets what no process had set
		{20 * MiB, 10 * MiB, true},    // too late
		{0, 10 * MiB, false},          // has nothing to say
		{10*MiB + 1, 10 * MiB, false}, // the same, in whole units
	} {
		var own Limits
		if c.bring > 0 {
			own = limited(c.bring)
		}
		r, err := Open(path, Options{Limits: own})
		must(t, err)
		l, err := r.Limit(0)
		must(t, err)
		expect.Equal(t, l.Bytes(), c.have, "process", i, "the limit is")
		d, err := r.Differences(own)
		must(t, err)
		expect.Equal(t, (len(d) > 0), c.differs, "process", i, "differences", d)
		must(t, r.Close())
	}
}

func TestLimitChangesWhileRunning(t *testing.T) {
	r := open(t, 10*MiB)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Data, 8*MiB))
	must(t, r.SetLimit(0, abi.MakeLimit(4*MiB)))
	err := s.Charge(0, abi.Data, 1)
	expect.True(t, errors.Is(err, ErrRefused), "below what is held", err)
	must(t, s.Return(0, abi.Data, 6*MiB))
	must(t, s.Charge(0, abi.Data, 2*MiB))
	must(t, r.SetLimit(0, abi.Unlimited))
	must(t, s.Charge(0, abi.Data, 100*MiB))
}

func TestOperatorsLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	must(t, WriteLimitsFile(path, limited(2*MiB)))
	r, err := Open(path, Options{Limits: limited(100 * MiB)})
	must(t, err)
	s := claim(t, r)
	if err := s.Charge(0, abi.Data, 3*MiB); !errors.Is(err, ErrRefused) {
		t.Errorf("a tenant raised its own limit: %v", err)
	}
	must(t, r.SetLimit(0, abi.MakeLimit(4*MiB))) // the operator is us
	must(t, s.Charge(0, abi.Data, 3*MiB))
	must(t, s.Leave())
	must(t, r.Close())

	must(t, os.Remove(path+LimitsSuffix))
	if _, err := Open(path, Options{}); !errors.Is(err, ErrLimits) {
		t.Errorf("the limits vanished: %v", err)
	}
	for name, content := range map[string][]byte{"empty": nil, "short": make([]byte, 100), "zero": make([]byte, limitsSize)} {
		must(t, os.WriteFile(path+LimitsSuffix, content, 0o644))
		_, err := Open(path, Options{})
		expect.True(t, errors.Is(err, ErrLimits), name, "limits", err)
	}
}

func TestATenantCannotRaiseAnOperatorsLimit(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write any file; TestOperatorsLimits covers the rest")
	}
	path := filepath.Join(t.TempDir(), "region")
	must(t, WriteLimitsFile(path, limited(2*MiB)))
	must(t, os.Chmod(path+LimitsSuffix, 0o444))
	r, err := Open(path, Options{})
	must(t, err)
	defer r.Close()
	err = r.SetLimit(0, abi.Unlimited)
	expect.True(t, errors.Is(err, ErrReadOnly), "raising it", err)
}

// A stray write cannot raise a limit: the page is mapped for reading.
func TestLimitsPageIsReadOnly(t *testing.T) {
	if pageSize > abi.PageSize {
		t.Skip("this machine's pages hold more than the limits")
	}
	r := open(t, MiB)
	expect.OK(t, unix.Mprotect(r.mem[limitsOffset:limitsOffset+limitsSize], unix.PROT_READ))
	err := func() (err error) {
		defer r.guard(&err, setPanicOnFault())
		r.limits.Device[0].Memory = uint64(abi.Unlimited)
		return nil
	}()
	expect.True(t, errors.Is(err, ErrDamaged), "the page took a write")
}

// Where pages are larger than the limits, these are set and hold all the same. They
// share a page with the header, so a stray write is not stopped there.
func TestLargePages(t *testing.T) {
	defer func(before int64) { pageSize = before }(pageSize)
	pageSize = 1 << 16
	r := open(t, MiB)
	s := claim(t, r)
	if err := s.Charge(0, abi.Data, 2*MiB); !errors.Is(err, ErrRefused) {
		t.Errorf("beyond the limit: %v", err)
	}
	must(t, r.SetLimit(0, limited(4 * MiB).Memory[0]))
	must(t, s.Charge(0, abi.Data, 2*MiB))
	err := func() (err error) {
		defer r.guard(&err, setPanicOnFault())
		r.limits.Changes++
		return nil
	}()
	expect.Equal(t, err, nil, "what shares the page of the limits is not written")
}
