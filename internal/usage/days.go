package usage

import (
	"time"

	"go.etcd.io/bbolt"
)

// addDays adds up the hours to days, in a file of a version that kept none.
func addDays(tx *bbolt.Tx) error {
	name, from := []byte(levels[days].name), tx.Bucket([]byte(levels[hours].name))
	if from == nil || tx.Bucket(name) != nil {
		return nil
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

// wholeDay reports whether the record of a day has all that the hours of that day have. It has not if an earlier version,
// which knows no days, has written some of the hours. What was watched tells: each write adds it to the hour and to the day.
func wholeDay(tx *bbolt.Tx, at time.Time) bool {
	b := tx.Bucket([]byte(levels[days].name))
	if b == nil {
		return false // a file of such a version, which is open for reading only
	}
	day := b.Get(keyOf(at))
	if day == nil {
		return false
	}
	var sum uint64
	c := tx.Bucket([]byte(levels[hours].name)).Cursor()
	for k, text := c.Seek(keyOf(at)); k != nil && timeOf(k).Before(at.Add(levels[days].span)); k, text = c.Next() {
		sum += watchedOf(text)
	}
	return sum == watchedOf(day)
}

// watchedOf returns how many nanoseconds of a stored record were watched.
func watchedOf(text []byte) uint64 {
	_, text = nextNumber(text)
	watched, _ := nextNumber(text)
	return watched
}
