package usage

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
)

// Account is the account of a subject for one period.
type Account struct {
	Subject
	Sums
	At   time.Time
	Span time.Duration
}

// Read visits all accounts between two times, and returns how much of that time was watched. Of a time that is
// kept in hours only, it visits whole hours: it begins up to an hour earlier, and returns when.
func (s *Store) Read(from, to time.Time, visit func(Account)) (began time.Time, seen time.Duration, err error) {
	defer s.guard(&err, debug.SetPanicOnFault(true))
	from = from.Truncate(Step)
	began = from
	err = s.db.View(func(tx *bbolt.Tx) error {
		r := reading{tx: tx, subjects: map[uint32]Subject{}, visit: visit, to: to}
		hour, minute := levels[2], levels[1]
		at := firstOf(tx, hour)
		if at.IsZero() {
			return nil // nothing was written yet
		}
		if at.After(from) {
			from = at // earlier than that there is nothing
		}
		for at = from; at.Before(to); {
			switch {
			case at.Equal(at.Truncate(hour.span)) && !at.Add(hour.span).After(to), !has(tx, minute, at):
				at = at.Truncate(hour.span)
				if at.Before(began) {
					began = at
				}
				at = r.period(hour, at)
			case at.Equal(at.Truncate(minute.span)) && !at.Add(minute.span).After(to), !has(tx, levels[0], at):
				at = r.period(minute, at.Truncate(minute.span))
			default:
				at = r.period(levels[0], at)
			}
			if r.err != nil {
				return r.err
			}
		}
		seen = r.seen
		return nil
	})
	if err != nil {
		return began, 0, fmt.Errorf("reading the accounts: %w", err)
	}
	return began, seen, nil
}

// firstOf returns the oldest period of a level; zero if there is none.
func firstOf(tx *bbolt.Tx, l level) time.Time {
	b := tx.Bucket([]byte(l.name))
	if b == nil {
		return time.Time{}
	}
	if k, _ := b.Cursor().First(); k != nil {
		return timeOf(k)
	}
	return time.Time{}
}

// has reports whether a level still has the time's periods.
func has(tx *bbolt.Tx, l level, at time.Time) bool {
	first := firstOf(tx, l)
	return !first.IsZero() && !first.After(at)
}

// reading is one Read.
type reading struct {
	tx       *bbolt.Tx
	subjects map[uint32]Subject
	visit    func(Account)
	to       time.Time
	seen     time.Duration
	err      error
}

// period visits the accounts of one period, and returns the beginning of the next.
func (r *reading) period(l level, at time.Time) time.Time {
	c := r.tx.Bucket([]byte(l.name)).Cursor()
	k, v := c.Seek(keyOf(at, 0))
	if k == nil {
		return r.to // nothing is later
	}
	if next := timeOf(k); next.After(at) {
		return next.Truncate(l.span) // skip what was not watched at all
	}
	for ; k != nil && timeOf(k).Equal(at); k, v = c.Next() {
		sums, err := decode(v)
		if err != nil {
			r.err = err
			return r.to
		}
		if numberOf(k) == watched {
			r.seen += time.Duration(sums.Held)
			continue
		}
		subject, known := r.subject(numberOf(k))
		if known {
			r.visit(Account{subject, sums, at, l.span})
		}
	}
	return at.Add(l.span)
}

func (r *reading) subject(n uint32) (s Subject, known bool) {
	if s, known = r.subjects[n]; known {
		return s, true
	}
	text := r.tx.Bucket(bucketSubjects).Get(binary.BigEndian.AppendUint32(nil, n))
	if text == nil || json.Unmarshal(text, &s) != nil {
		return s, false
	}
	r.subjects[n] = s
	return s, true
}
