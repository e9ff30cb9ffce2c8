package usage

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"ration/check/expect"
)

func sums(from uint64) Sums {
	return Sums{from, from + 1, from + 2, from + 3, from + 4, from + 5, from + 6, from + 7, from + 8, ^uint64(0) - from, from + 9}
}

// A record is read as it was written, and adding keeps the order.
func TestRecord(t *testing.T) {
	r := record{watched: Step}
	r.add([]numberedSums{{2, sums(1)}, {1 << 31, sums(2)}})
	r.add([]numberedSums{{1, sums(3)}, {2, sums(4)}, {7, sums(5)}})
	got, err := decodeRecord(r.encode())
	expect.OK(t, err)
	want := []numberedSums{{1, sums(3)}, {2, sums(1).Plus(sums(4))}, {7, sums(5)}, {1 << 31, sums(2)}}
	expect.True(t, got.watched == Step && slices.Equal(got.accounts, want), got, want)
	short := record{watched: Step, accounts: []numberedSums{{1, Sums{Held: 1}}, {2, Sums{Held: 1, Idle: 1}}}}
	got, err = decodeRecord(short.encode())
	expect.True(t, err == nil && slices.Equal(got.accounts, short.accounts) && len(short.encode()) == len(r.encode()[:1])+5+2*4, len(short.encode()), got, err)
	// Of a version with two more sums, and of one with only two.
	later, earlier := binary.AppendUvarint(nil, sumCount+2), binary.AppendUvarint(nil, 2)
	for _, n := range []uint64{5, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 1, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33} {
		later = binary.AppendUvarint(later, n)
	}
	for _, n := range []uint64{5, 3, 1, 2, 1, 21, 22} {
		earlier = binary.AppendUvarint(earlier, n)
	}
	got, err = decodeRecord(later)
	expect.True(t, err == nil && len(got.accounts) == 2 && got.accounts[1] == numberedSums{4, Sums{21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31}}, got, err)
	got, err = decodeRecord(earlier)
	expect.True(t, err == nil && len(got.accounts) == 2 && got.accounts[1] == numberedSums{4, Sums{Held: 21, Reserved: 22}}, got, err)
}

// A damaged record is an error, and never more than is there.
func FuzzRecord(f *testing.F) {
	r := record{watched: Step, accounts: []numberedSums{{1, sums(3)}, {9, sums(1)}}}
	f.Add(r.encode())
	f.Add(r.encode()[:20])
	f.Add([]byte{255, 255, 255, 255, 15, 1})
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := decodeRecord(text)
		if err != nil {
			expect.True(t, errors.Is(err, ErrBroken), err)
			return
		}
		again, err := decodeRecord(got.encode())
		expect.True(t, err == nil && slices.Equal(again.accounts, got.accounts) && again.watched == got.watched, text, err)
		expect.True(t, slices.IsSortedFunc(got.accounts, func(a, b numberedSums) int { return int(int64(a.number) - int64(b.number)) }), got.accounts)
	})
}
