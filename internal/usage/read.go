package usage

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
)

// Account is the account of a subject for one period. It is valid during a visit.
type Account struct {
	*Subject
	Sums
	At   time.Time
	Span time.Duration

	number uint32 // of the subject
}

// Read visits all accounts between two times, and returns how much of that time was watched. Of a time that is
// kept in hours only, it visits whole hours: it begins up to an hour earlier, and returns when.
func (s *Store) Read(from, to time.Time, visit func(*Account)) (began time.Time, seen time.Duration, err error) {
	began, err = s.read(from, to, levels[days].span, visit, func(_ time.Time, _, d time.Duration) { seen += d })
	if err != nil {
		return began, 0, err
	}
	return began, seen, nil
}

// read is Read in periods that are as short as resolution, where they are still kept. see is called with the time that was
// watched of each period.
func (s *Store) read(from, to time.Time, resolution time.Duration, visit func(*Account), see func(at time.Time, span, seen time.Duration)) (began time.Time, err error) {
	defer s.guard(&err, debug.SetPanicOnFault(true))
	from = from.Truncate(Step)
	began = from
	err = s.db.View(func(tx *bbolt.Tx) error {
		r := reading{tx: tx, subjects: map[uint32]*Subject{}, visit: visit, see: see, to: to}
		day, hour, minute := levels[days], levels[hours], levels[minutes]
		at := firstOf(tx, hour)
		if at.IsZero() {
			return nil // nothing was written yet
		}
		if at.After(from) {
			from = at // earlier than that there is nothing
		}
		kept := keepsDays(tx, tx.ID())
		for at = from; at.Before(to); {
			switch {
			case day.span <= resolution && !at.Add(day.span).After(to) && hasDay(tx, kept, at):
				at = r.period(day, at)
			case hour.span <= resolution && at.Equal(at.Truncate(hour.span)) && !at.Add(hour.span).After(to), !has(tx, minute, at):
				at = at.Truncate(hour.span)
				if at.Before(began) {
					began = at
				}
				at = r.period(hour, at)
			case minute.span <= resolution && at.Equal(at.Truncate(minute.span)) && !at.Add(minute.span).After(to), !has(tx, levels[steps], at):
				at = r.period(minute, at.Truncate(minute.span))
			default:
				at = r.period(levels[steps], at)
			}
			if r.err != nil {
				return r.err
			}
		}
		return nil
	})
	if err != nil {
		return began, fmt.Errorf("reading the accounts: %w", err)
	}
	return began, nil
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

// has reports whether a level still has the time's periods: it begins before, or has never dropped one. After it has
// dropped one, it has as many as it may.
func has(tx *bbolt.Tx, l level, at time.Time) bool {
	first := firstOf(tx, l)
	if first.IsZero() || !first.After(at) {
		return !first.IsZero()
	}
	last, _ := tx.Bucket([]byte(l.name)).Cursor().Last()
	return timeOf(last).Sub(first) < time.Duration(l.most-1)*l.span
}

// reading is one Read.
type reading struct {
	tx       *bbolt.Tx
	subjects map[uint32]*Subject
	visit    func(*Account)
	see      func(at time.Time, span, seen time.Duration)
	to       time.Time
	err      error
}

// period visits the accounts of one period, and returns the beginning of the next.
func (r *reading) period(l level, at time.Time) time.Time {
	k, text := r.tx.Bucket([]byte(l.name)).Cursor().Seek(keyOf(at))
	if k == nil {
		return r.to // nothing is later
	}
	switch next := timeOf(k); {
	case next.Before(at):
		return r.to // no key can be later
	case !next.Equal(next.Truncate(l.span)):
		r.err = ErrBroken
		return r.to
	case next.After(at):
		return next // skip what was not watched at all
	}
	a := Account{At: at, Span: l.span}
	seen, err := visitRecord(text, func(number uint32, sums *Sums) {
		if a.Subject = r.subject(number); a.Subject != nil {
			a.Sums, a.number = *sums, number
			r.visit(&a)
		}
	})
	if err != nil {
		r.err = err
		return r.to
	}
	r.see(at, l.span, seen)
	return at.Add(l.span)
}

// subject returns the subject with a number, or nil.
func (r *reading) subject(n uint32) *Subject {
	s, known := r.subjects[n]
	if !known {
		text := r.tx.Bucket(bucketSubjects).Get(binary.BigEndian.AppendUint32(nil, n))
		s = &Subject{}
		if text == nil || json.Unmarshal(text, s) != nil {
			s = nil
		}
		r.subjects[n] = s
	}
	return s
}
