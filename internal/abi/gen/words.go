package main

import (
	"math/bits"
	"reflect"

	"ration/internal/abi"
)

// words lists the types that describe the bits of a word.
var words = []reflect.Type{
	reflect.TypeFor[abi.LedgerWord](), reflect.TypeFor[abi.Pend](), reflect.TypeFor[abi.Used](),
	reflect.TypeFor[abi.Status](), reflect.TypeFor[abi.HostPID](), reflect.TypeFor[abi.ContextCost](),
	reflect.TypeFor[abi.NVMLPIDs](), reflect.TypeFor[abi.Work](), reflect.TypeFor[abi.Due](), reflect.TypeFor[abi.TimePart](), reflect.TypeFor[abi.Slice](), reflect.TypeFor[abi.Phase](), reflect.TypeFor[abi.Limit](), reflect.TypeFor[abi.Exported](), reflect.TypeFor[abi.Sleep](), reflect.TypeFor[abi.Turns](), reflect.TypeFor[abi.Lane](),
	reflect.TypeFor[abi.WaitPlace](), reflect.TypeFor[abi.Waited](), reflect.TypeFor[abi.Told](),
}

// bitRange is the position of a number in a word.
type bitRange struct {
	low, width int
	signed     bool
}

// rangeOf calls an accessor with every single bit set, and so finds the range of bits that it
// returns. It returns false for a method that returns something else, such as a computed number.
func rangeOf(word reflect.Type, method string) (r bitRange, ok bool) {
	m, there := word.MethodByName(method)
	if !there || m.Type.NumIn() != 1 || m.Type.NumOut() != 1 {
		return r, false
	}
	ask := func(w uint64) uint64 {
		v := reflect.New(word).Elem()
		v.SetUint(w)
		switch out := m.Func.Call([]reflect.Value{v})[0]; {
		case out.CanInt():
			return uint64(out.Int())
		case out.CanUint():
			return out.Uint()
		case out.Kind() == reflect.Bool && out.Bool():
			return 1
		}
		return 0
	}
	var all uint64 // all bits that the accessor returns
	for bit := range 64 {
		if ask(1<<bit) != 0 {
			all |= 1 << bit
		}
	}
	if all == 0 {
		return r, false
	}
	r.low, r.width = bits.TrailingZeros64(all), bits.OnesCount64(all)
	top := uint64(1) << (r.width - 1)
	mask := top<<1 - 1
	r.signed = r.width > 1 && ask(top<<r.low) == -top
	if all != mask<<r.low {
		return r, false
	}
	for bit := range r.width {
		want := uint64(1) << bit
		if r.signed && want == top {
			want = -top
		}
		if ask(1<<(r.low+bit)) != want {
			return r, false
		}
	}
	if r.signed {
		mask = ^uint64(0)
	}
	return r, ask(0) == 0 && ask(^uint64(0)) == mask
}
