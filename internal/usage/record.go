package usage

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// record is one period of a level. It is stored as variable-length integers: how many sums an account has, the
// nanoseconds that were watched, and the accounts by the numbers of their subjects, ascending. Each has the difference
// of its number from the one before, and its sums. Sums at the end that are 0 in all accounts are left out, as those are that an
// earlier version did not know.
type record struct {
	watched  time.Duration
	accounts []numberedSums
}

type numberedSums struct {
	number uint32
	Sums
}

// numbered returns the accounts of a period, by number.
func numbered(tx *bbolt.Tx, p Period) ([]numberedSums, error) {
	out := make([]numberedSums, 0, len(p.Sums))
	for subject, sums := range p.Sums {
		n, err := number(tx, subject)
		if err != nil {
			return nil, err
		}
		out = append(out, numberedSums{n, sums})
	}
	slices.SortFunc(out, func(a, b numberedSums) int { return cmp.Compare(a.number, b.number) })
	return out, nil
}

// add adds accounts, which are ordered by number.
func (r *record) add(more []numberedSums) {
	merged, old := make([]numberedSums, 0, len(r.accounts)+len(more)), r.accounts
	for len(old) > 0 || len(more) > 0 {
		switch {
		case len(more) == 0 || len(old) > 0 && old[0].number < more[0].number:
			merged, old = append(merged, old[0]), old[1:]
		case len(old) == 0 || more[0].number < old[0].number:
			merged, more = append(merged, more[0]), more[1:]
		default:
			merged = append(merged, numberedSums{old[0].number, old[0].Plus(more[0].Sums)})
			old, more = old[1:], more[1:]
		}
	}
	r.accounts = merged
}

// encode returns the record as stored.
func (r *record) encode() []byte {
	out := make([]byte, 0, 16+48*len(r.accounts))
	count := r.sums()
	out = binary.AppendUvarint(out, uint64(count))
	out = binary.AppendUvarint(out, uint64(r.watched))
	last := uint32(0)
	for i := range r.accounts {
		a := &r.accounts[i]
		out = binary.AppendUvarint(out, uint64(a.number-last))
		fields := a.fields()
		for _, field := range fields[:count] {
			out = binary.AppendUvarint(out, *field)
		}
		last = a.number
	}
	return out
}

// sums returns how many sums must be stored: up to the last one that is not 0 everywhere.
func (r *record) sums() int {
	count := 1
	for i := range r.accounts {
		fields := r.accounts[i].fields()
		for count < sumCount && slices.ContainsFunc(fields[count:], func(f *uint64) bool { return *f != 0 }) {
			count++
		}
	}
	return count
}

// decodeRecord reads a stored record; an empty one if there is none.
func decodeRecord(text []byte) (r record, err error) {
	if text == nil {
		return r, nil
	}
	r.watched, err = visitRecord(text, func(number uint32, s *Sums) { r.accounts = append(r.accounts, numberedSums{number, *s}) })
	return r, err
}

// visitRecord visits the accounts of a stored record, and returns how long was watched. Sums that an earlier version did
// not know are 0; those that a later version has added are ignored.
func visitRecord(text []byte, visit func(number uint32, s *Sums)) (watched time.Duration, err error) {
	count, text := nextNumber(text)
	seen, text := nextNumber(text)
	if text == nil || count == 0 || count > maxSums {
		return 0, ErrBroken
	}
	var sums Sums // one for all visits: a year has millions
	fields, last, step := sums.fields(), uint64(0), uint64(0)
	for len(text) > 0 {
		step, text = nextNumber(text)
		last += step
		for i := range int(count) {
			var value uint64
			if value, text = nextNumber(text); i < len(fields) {
				*fields[i] = value
			}
		}
		if text == nil || step == 0 || last > 1<<32-1 {
			return 0, ErrBroken
		}
		visit(uint32(last), &sums)
	}
	return time.Duration(min(seen, 1<<62)), nil
}

// nextNumber returns the first number of a text, and the rest; nil if there is none.
func nextNumber(text []byte) (uint64, []byte) {
	if len(text) > 0 && text[0] < 0x80 {
		return uint64(text[0]), text[1:]
	}
	value, n := binary.Uvarint(text)
	if n <= 0 {
		return 0, nil
	}
	return value, text[n:]
}
