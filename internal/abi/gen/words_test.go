package main

import (
	"go/build"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/abi"
)

func TestRangeOf(t *testing.T) {
	for _, c := range []struct {
		word   reflect.Type
		method string
		want   bitRange
		ok     bool
	}{
		{reflect.TypeFor[abi.LedgerWord](), "Units", bitRange{32, 32, false}, true},
		{reflect.TypeFor[abi.LedgerWord](), "Slot", bitRange{22, 10, false}, true},
		{reflect.TypeFor[abi.Pend](), "Delta", bitRange{0, 33, true}, true},
		{reflect.TypeFor[abi.Limit](), "IsSet", bitRange{63, 1, false}, true},
		{reflect.TypeFor[abi.Limit](), "Limited", bitRange{}, false}, // true for one bit, false for all
		{reflect.TypeFor[abi.Limit](), "Bytes", bitRange{}, false},   // zero for every bit by itself
		{reflect.TypeFor[abi.Limit](), "Ceiling", bitRange{}, false}, // not zero for zero
		{reflect.TypeFor[abi.ContextCost](), "Of", bitRange{}, false},
	} {
		r, ok := rangeOf(c.word, c.method)
		expect.True(t, ok == c.ok && (!ok || r == c.want), c.word.Name(), ".", c.method, r, ok, c.want, c.ok)
	}
}

// Two parts of a word that shared a bit could not both be right.
func TestPartsDoNotOverlap(t *testing.T) {
	if build.Default.GOROOT == "" { // compiled with -trimpath
		root, err := exec.Command("go", "env", "GOROOT").Output()
		expect.OK(t, err)
		build.Default.GOROOT = strings.TrimSpace(string(root))
	}
	s, err := load("..")
	expect.OK(t, err)
	for _, word := range words {
		taken, parts := uint64(0), 0
		for _, method := range s.methods[word.Name()] {
			r, ok := rangeOf(word, method)
			if !ok {
				continue
			}
			bits := (uint64(1)<<r.width - 1) << r.low
			expect.Equal(t, taken&bits, 0, word.Name(), ".", method, "shares bits with another part")
			taken |= bits
			parts++
		}
		expect.True(t, parts >= 2, word.Name(), "has", parts, "parts: it needs no packing")
	}
}
