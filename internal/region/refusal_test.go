package region

import (
	"errors"
	"runtime/debug"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

func setPanicOnFault() bool { return debug.SetPanicOnFault(true) }

func TestARefusalExplainsItself(t *testing.T) {
	r := open(t, 10*MiB)
	small, large := claim(t, r), claim(t, r)
	must(t, large.Charge(0, abi.Data, 7*MiB))
	must(t, small.Charge(0, abi.Data, 1*MiB))
	err := small.Charge(0, abi.Data, 3*MiB)
	var refused *RefusedError
	expect.Must(t, errors.As(err, &refused), err)
	expect.True(t, refused.Asked == 3*MiB && refused.Held == 8*MiB && refused.Limit == 10*MiB && refused.Own == MiB && refused.Slot == small.Index(),
		"refusal", refused.Refusal)
	expect.True(t, len(refused.Top) == 2 && refused.Top[0].Bytes == 7*MiB && refused.Top[1].Bytes == MiB, "who held what", refused.Top)
	expect.True(t, strings.Contains(err.Error(), "3145728 bytes asked, 2097152 free"), err)
	got, err := r.Refusals()
	must(t, err)
	expect.True(t, len(got) == 1 && got[0].Asked == 3*MiB && len(got[0].Top) == 2, "the ring holds", got)
}

func TestTheRingKeepsTheLatest(t *testing.T) {
	r := open(t, MiB)
	s := claim(t, r)
	for i := range uint64(abi.Refusals + 10) {
		err := s.Charge(0, abi.Data, 2*MiB+i*abi.Unit)
		expect.Must(t, errors.Is(err, ErrRefused), err)
	}
	got, err := r.Refusals()
	must(t, err)
	expect.True(t, len(got) == abi.Refusals && got[0].Asked == 2*MiB+(abi.Refusals+9)*abi.Unit && got[len(got)-1].Asked == 2*MiB+10*abi.Unit,
		len(got), "kept, from", got[len(got)-1].Asked, "to", got[0].Asked)
}

func TestTornEntriesAreNotShown(t *testing.T) {
	r := open(t, MiB)
	s := claim(t, r)
	for range 3 {
		_ = s.Charge(0, abi.Data, 2*MiB)
	}
	r.m.Refusals[0].Seq--         // its writer died
	r.m.Refusals[1].Asked = 12345 // another one wrote into it
	got, err := r.Refusals()
	must(t, err)
	expect.Equal(t, len(got), 1, "entries shown")
}
