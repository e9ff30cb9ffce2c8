package usage

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"ration/internal/proc"
)

// level is a resolution at which the accounts are kept, and for how many periods. Old periods are counted,
// not dated: a clock that jumps ahead does not empty the file.
type level struct {
	name string
	span time.Duration
	most int
}

// Indexes in levels.
const (
	steps = iota
	minutes
	hours
	days
)

// levels, the finest first: seconds for an hour, minutes for a day, hours for a year. Days make reports of long times
// fast; they have no number of their own: a day goes with the first of its hours.
var levels = []level{{"10s", Step, 360}, {"1m", time.Minute, 24 * 60}, {"1h", time.Hour, 366 * 24}, {"1d", 24 * time.Hour, 0}}

// A level's bucket has a key for each period, its time, and all accounts of the period in one value (see record): a key
// for each account would need twice the space, and a report three times as long.
var (
	bucketSubjects = []byte("subjects") // number: Subject as JSON
	bucketNumbers  = []byte("numbers")  // Subject as JSON: number
)

// MaxSize bounds the file: when it is larger, days are folded, and if that is not enough, the oldest hours go.
const MaxSize = 200 << 20

// minSize is the size of a new file: four pages. A smaller one was cut short.
var minSize = 4 * int64(os.Getpagesize())

// lockTimeout is how long Open waits for another process that has the file open.
const lockTimeout = time.Second

// Store is the file of the accounts. One process writes it.
type Store struct {
	db      *bbolt.DB
	maxSize int64
	count   []int             // by level: periods that are in the file
	swept   time.Time         // oldest day when subjects were last swept
	folded  time.Time         // all days before are folded, as far as that is of use
	account func(uid int) int // proc.Account, except in tests
	broken  atomic.Bool
}

// ErrBroken is returned for a file that cannot be used.
var ErrBroken = errors.New("the file of accounts is damaged")

// ErrInUse is returned if another process has the file open for writing, as a running agent has, or, for Open, for reading.
var ErrInUse = errors.New("another process has the accounts open")

// noFileError is returned if no agent has kept accounts.
type noFileError struct{ path string }

func (e noFileError) Error() string { return "no agent has kept accounts of usage in " + e.path }
func (e noFileError) Unwrap() error { return os.ErrNotExist }

// Open opens the accounts for writing, and makes the file if there is none.
func Open(path string) (*Store, error) { return open(path, false) }

// OpenReadOnly opens accounts that no agent is writing now.
func OpenReadOnly(path string) (*Store, error) { return open(path, true) }

func open(path string, readOnly bool) (_ *Store, err error) {
	s := &Store{maxSize: MaxSize, account: proc.Account}
	defer s.guard(&err, debug.SetPanicOnFault(true))
	if readOnly {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil, noFileError{path}
		} else if err != nil {
			return nil, fmt.Errorf("opening the accounts: %w", err)
		}
	}
	// Free pages are taken from the beginning of the file. The library's other list cuts large runs of them into small ones:
	// then records, which need runs, would make the file grow without end (to four times MaxSize in a year of many names).
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, ReadOnly: readOnly, FreelistType: bbolt.FreelistArrayType})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		err = ErrInUse
	case damaged(path, err):
		err = fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the accounts: %s: %w", path, err)
	}
	s.db = db
	if readOnly {
		return s, nil
	}
	if err := db.Update(s.prepare); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the accounts: %s: %w", path, err), db.Close())
	}
	return s, nil
}

// damaged reports whether the library could not open a file because of its content.
func damaged(path string, err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return true
	}
	st, err := os.Stat(path)
	return err == nil && st.Size() > 0 && st.Size() < minSize
}

// guard turns a panic into ErrBroken: the library panics on a page that it does not understand, and reads
// beyond the end of a file that was cut short. faults is what debug.SetPanicOnFault returned.
func (s *Store) guard(err *error, faults bool) {
	debug.SetPanicOnFault(faults)
	if p := recover(); p != nil {
		s.broken.Store(true)
		*err = fmt.Errorf("%w: %v", ErrBroken, p)
	}
}

// Close closes the file. A damaged one stays open until the process ends: the library may hold its own lock
// since it panicked, and would wait for it.
func (s *Store) Close() error {
	if s.broken.Load() {
		return nil
	}
	return s.db.Close()
}

// prepare makes the buckets, and counts the periods.
func (s *Store) prepare(tx *bbolt.Tx) error {
	for _, name := range [][]byte{bucketSubjects, bucketNumbers, bucketJobTotals, bucketUserTotals} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	s.count = make([]int, len(levels))
	if err := addDays(tx); err != nil {
		return err
	}
	for i, l := range levels {
		b, err := tx.CreateBucketIfNotExists([]byte(l.name))
		if err != nil {
			return err
		}
		c := b.Cursor()
		last := []byte(nil)
		for k, _ := c.First(); k != nil; k, _ = c.Next() {
			if len(k) != 4 || bytes.Compare(k, last) <= 0 || !timeOf(k).Equal(timeOf(k).Truncate(l.span)) {
				return ErrBroken // keys that are not in order would keep other loops going for ever
			}
			last = k
			s.count[i]++
		}
	}
	s.swept = firstOf(tx, levels[hours]).Truncate(levels[days].span)
	return stampDays(tx)
}

// lastKey is the last day that a key can have, in 2106. Each level has a period that begins there.
const lastKey = (1<<32 - 1) / 86400 * 86400

// keyOf returns the key of the period that begins at a time; the first or the last one if a key cannot have that time.
func keyOf(at time.Time) []byte {
	return binary.BigEndian.AppendUint32(nil, uint32(min(max(0, at.Unix()), lastKey)))
}

func timeOf(key []byte) time.Time { return time.Unix(int64(binary.BigEndian.Uint32(key)), 0).UTC() }

// Add adds a period to all levels and to the totals, in one transaction: whenever the file is read, and whenever
// the writer is killed, they agree.
func (s *Store) Add(p Period) (err error) {
	defer s.guard(&err, debug.SetPanicOnFault(true))
	counts := slices.Clone(s.count)
	err = s.db.Update(func(tx *bbolt.Tx) error { return s.add(tx, p, counts) })
	if err != nil {
		return fmt.Errorf("writing the accounts: %w", err)
	}
	s.count = counts
	return nil
}

func (s *Store) add(tx *bbolt.Tx, p Period, counts []int) error {
	if err := addLevels(tx, p, counts); err != nil {
		return err
	}
	if err := errors.Join(addTotals(tx, p), stampDays(tx)); err != nil {
		return err
	}
	return s.bound(tx, counts)
}

// addLevels adds a period to all levels, and drops the oldest period of a level that has too many. counts has the
// number of periods by level.
func addLevels(tx *bbolt.Tx, p Period, counts []int) error {
	more, err := numbered(tx, p)
	if err != nil {
		return err
	}
	hadHour := false
	for i, l := range levels {
		b := tx.Bucket([]byte(l.name))
		b.FillPercent = 1 // keys are mostly appended
		key := keyOf(p.At.Truncate(l.span))
		text := b.Get(key)
		known := text != nil
		switch {
		case i == hours:
			hadHour = known
		case i == days && !known && (hadHour || lacksDay(tx, keyOf(p.At.Truncate(levels[hours].span)))):
			continue // a day of this period only would lack what its hours have
		}
		r, err := decodeRecord(text)
		if err != nil {
			return err
		}
		r.watched += p.Watched
		r.add(more)
		if err := b.Put(key, r.encode()); err != nil {
			return err
		}
		if !known {
			counts[i]++
		}
		for l.most > 0 && counts[i] > l.most {
			if err := dropOldest(tx, i, counts); err != nil {
				return err
			}
		}
	}
	return nil
}

// addTo adds to an account in a bucket.
func addTo(b *bbolt.Bucket, key []byte, more Sums) error {
	sums, err := decode(b.Get(key))
	if err != nil {
		return err
	}
	sums.add(more)
	return b.Put(key, sums.encode())
}

// number returns the number of a subject, and gives it one if it has none.
func number(tx *bbolt.Tx, s Subject) (uint32, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	numbers, subjects := tx.Bucket(bucketNumbers), tx.Bucket(bucketSubjects)
	if known := numbers.Get(text); len(known) == 4 {
		return binary.BigEndian.Uint32(known), nil
	}
	next, err := subjects.NextSequence() // from 1
	if err != nil {
		return 0, err
	}
	key := binary.BigEndian.AppendUint32(nil, uint32(next))
	return uint32(next), errors.Join(numbers.Put(text, key), subjects.Put(key, text))
}

// bound folds days if the file is too large, or drops the oldest hour if there is none to fold. Once for each day that goes,
// and after a fold, it drops the subjects that no account mentions any more.
func (s *Store) bound(tx *bbolt.Tx, counts []int) error {
	stats := s.db.Stats()
	free := int64(stats.FreePageN+stats.PendingPageN) * int64(s.db.Info().PageSize)
	dropped := counts[hours] < s.count[hours] || counts[hours] == levels[hours].most
	tooLarge := tx.Size()-free > s.maxSize
	if until := foldable(tx); tooLarge && !until.Equal(s.folded) {
		folded, err := fold(tx, s.account)
		if err != nil {
			return err
		}
		if folded {
			return sweep(tx, tx.Bucket([]byte(levels[hours].name)))
		}
		s.folded = until
	}
	if tooLarge && counts[hours] > 1 {
		if err := dropOldest(tx, hours, counts); err != nil {
			return err
		}
		dropped = true
	}
	// The machine may be off at midnight: any hour may be the first of its day.
	if oldest := firstOf(tx, levels[hours]).Truncate(levels[days].span); dropped && !oldest.IsZero() && !oldest.Equal(s.swept) {
		s.swept = oldest
		return sweep(tx, tx.Bucket([]byte(levels[hours].name)))
	}
	return nil
}

// sweep removes subjects that no hour mentions, and their totals.
func sweep(tx *bbolt.Tx, hours *bbolt.Bucket) error {
	used := map[uint32]bool{}
	if err := hours.ForEach(func(_, text []byte) error {
		_, err := visitRecord(text, func(number uint32, _ *Sums) { used[number] = true })
		return err
	}); err != nil {
		return err
	}
	numbers, subjects := tx.Bucket(bucketNumbers), tx.Bucket(bucketSubjects)
	var unused [][]byte // deleting moves a cursor
	if err := subjects.ForEach(func(k, _ []byte) error {
		if !used[binary.BigEndian.Uint32(k)] {
			unused = append(unused, slices.Clone(k))
		}
		return nil
	}); err != nil {
		return err
	}
	for _, k := range unused {
		if err := errors.Join(numbers.Delete(subjects.Get(k)), subjects.Delete(k)); err != nil {
			return err
		}
	}
	return sweepTotals(tx)
}

// dropOldest removes the oldest period of a level, and with an hour its day: a day in the file has all of its hours
// there. So the subjects of the hours are those of the days.
func dropOldest(tx *bbolt.Tx, at int, counts []int) error {
	b := tx.Bucket([]byte(levels[at].name))
	first, _ := b.Cursor().First()
	if first == nil {
		return ErrBroken // it was counted
	}
	first = slices.Clone(first)
	if err := b.Delete(first); err != nil {
		return err
	}
	if next, _ := b.Cursor().First(); bytes.Equal(next, first) {
		return ErrBroken // the library did not find it to delete it
	}
	counts[at]--
	if b := tx.Bucket([]byte(levels[days].name)); at == hours && b.Get(dayOf(first)) != nil {
		counts[days]--
		return b.Delete(dayOf(first))
	}
	return nil
}
