package usage

import (
	"bytes"
	"time"

	"go.etcd.io/bbolt"
)

// Days are sums of hours, and only for speed. A version that knows no days may write to the file in between. So the
// sequence number of the level's bucket has the number of the last transaction that a version with days has made: if it is the last
// one of the file, the days have all that their hours have.

// stampDays notes that this transaction keeps the days.
func stampDays(tx *bbolt.Tx) error {
	return tx.Bucket([]byte(levels[days].name)).SetSequence(uint64(tx.ID()))
}

// keepsDays reports whether a transaction with this number, or an earlier one, was the last to write, and kept the days.
func keepsDays(tx *bbolt.Tx, last int) bool {
	b := tx.Bucket([]byte(levels[days].name))
	return b != nil && b.Sequence() == uint64(last)
}

// addDays adds up the hours to days anew, unless all writers have kept them.
func addDays(tx *bbolt.Tx) error {
	name, from := []byte(levels[days].name), tx.Bucket([]byte(levels[hours].name))
	if keepsDays(tx, tx.ID()-1) || from == nil {
		return nil
	}
	if tx.Bucket(name) != nil {
		if err := tx.DeleteBucket(name); err != nil {
			return err
		}
	}
	to, err := tx.CreateBucket(name)
	if err != nil {
		return err
	}
	to.FillPercent = 1 // keys are appended
	var day record
	var at time.Time
	put := func() error {
		if at.IsZero() {
			return nil
		}
		return to.Put(keyOf(at), day.encode())
	}
	if err := from.ForEach(func(k, text []byte) error {
		r, err := decodeRecord(text)
		if err != nil || len(k) != 4 {
			return ErrBroken
		}
		if next := timeOf(k).Truncate(levels[days].span); !next.Equal(at) {
			if err := put(); err != nil {
				return err
			}
			day, at = record{}, next
		}
		day.watched += r.watched
		day.add(r.accounts)
		return nil
	}); err != nil {
		return err
	}
	return put()
}

// dayOf returns the key of the day that an hour belongs to.
func dayOf(hour []byte) []byte { return keyOf(timeOf(hour).Truncate(levels[days].span)) }

// lacksDay reports whether other hours of an hour's day are there, though the day is not: the first of its hours was dropped,
// and then the clock went back.
func lacksDay(tx *bbolt.Tx, hour []byte) bool {
	c := tx.Bucket([]byte(levels[hours].name)).Cursor()
	first, _ := c.Seek(dayOf(hour))
	if !bytes.Equal(first, hour) {
		return true
	}
	next, _ := c.Next()
	return next != nil && bytes.Equal(dayOf(next), dayOf(hour))
}

// hasDay reports whether the file has a whole day, from this time on. kept is what keepsDays says.
func hasDay(tx *bbolt.Tx, kept bool, at time.Time) bool {
	return kept && at.Equal(at.Truncate(levels[days].span)) && tx.Bucket([]byte(levels[days].name)).Get(keyOf(at)) != nil
}
