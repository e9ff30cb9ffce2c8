package usage

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// When the file is too large, old days of the users with most accounts are folded: the jobs of such a user on such a day
// become one, OtherJobs, for each device. So a user with many names shortens the accounts of nobody else.

const (
	foldPart = 8  // one account in so many is to go at a time: each time all days are read
	foldDays = 32 // at a time, which bounds the transaction
)

// folder folds days in a transaction.
type folder struct {
	tx      *bbolt.Tx
	known   map[uint32]*Subject // nil if there is no such subject
	numbers map[Subject]uint32
	user    func(uid int) int // proc.Account, except in tests
}

// oldDay is a day of which the finer levels have nothing any more.
type oldDay struct {
	key  []byte
	gain map[int]int // by user: accounts that a fold removes
}

// fold folds days, from the oldest on, until one account in foldPart is gone. It reports whether it has folded one.
func fold(tx *bbolt.Tx, account func(uid int) int) (folded bool, err error) {
	f := folder{tx: tx, known: map[uint32]*Subject{}, numbers: map[Subject]uint32{}, user: askedOnce(account)}
	old, all, err := f.read()
	if err != nil {
		return false, err
	}
	left := map[int]int{} // by user: accounts that can go
	for _, day := range old {
		for user, gain := range day.gain {
			left[user] += gain
		}
	}
	most, n := fairShare(left, all/foldPart), 0
	for _, day := range old {
		maps.DeleteFunc(day.gain, func(user, _ int) bool { return left[user] <= most })
		if len(day.gain) == 0 || n == foldDays {
			continue
		}
		n++
		if err := f.day(day); err != nil {
			return false, err
		}
		for user, gain := range day.gain {
			left[user] -= gain
		}
	}
	return n > 0, nil
}

// fairShare returns how many accounts each user may keep so that as many go. Users that have fewer keep theirs.
func fairShare(has map[int]int, away int) int {
	all, left := slices.Sorted(maps.Values(has)), -away
	for _, n := range all {
		left += n
	}
	for i, n := range all {
		if share := max(left, 0) / (len(all) - i); n > share {
			return share
		}
		left -= n
	}
	return left
}

// read returns the days that can be folded, from the oldest on, and how many accounts all days have.
func (f *folder) read() (old []oldDay, all int, err error) {
	until := foldable(f.tx)
	err = f.tx.Bucket([]byte(levels[days].name)).ForEach(func(key, text []byte) error {
		gain, into := map[int]int{}, map[Subject]bool{}
		others := map[int]*Subject{}
		_, err := visitRecord(text, func(number uint32, _ *Sums) {
			s := f.subject(number)
			if s == nil {
				return
			}
			user := f.user(s.UID)
			all++
			if to := f.into(s, others); !into[to] {
				into[to] = true
				gain[user]--
			}
			gain[user]++
		})
		maps.DeleteFunc(gain, func(_, n int) bool { return n == 0 })
		if len(gain) > 0 && timeOf(key).Before(until) {
			old = append(old, oldDay{slices.Clone(key), gain})
		}
		return err
	})
	return old, all, err
}

// foldable returns when the days end that can be folded: finer levels mention the subjects of the later ones.
func foldable(tx *bbolt.Tx) time.Time {
	return firstOf(tx, levels[minutes]).Truncate(levels[days].span)
}

// into returns the subject that a subject becomes. The subordinate users of a user become one of them, as in the meter: others
// has which, by user. Projects of root's jobs are namespaces of Kubernetes, or root's choice; others may be any number.
func (f *folder) into(s *Subject, others map[int]*Subject) Subject {
	to := Subject{UID: s.UID, Owner: s.Owner, Job: OtherJobs, Device: s.Device}
	if s.UID == 0 {
		to.Project = s.Project
	}
	if user := f.user(s.UID); user != s.UID {
		if others[user] == nil {
			others[user] = s
		}
		to.UID, to.Owner = others[user].UID, others[user].Owner
	}
	return to
}

// day folds the accounts of users that gain by it on a day, and in its hours.
func (f *folder) day(d oldDay) error {
	others := map[int]*Subject{}
	for _, l := range []int{days, hours} { // the day has the subjects of all its hours
		b := f.tx.Bucket([]byte(levels[l].name))
		var keys [][]byte // writing moves a cursor
		c := b.Cursor()
		for k, _ := c.Seek(d.key); k != nil && timeOf(k).Before(timeOf(d.key).Add(levels[days].span)); k, _ = c.Next() {
			keys = append(keys, slices.Clone(k))
		}
		for _, k := range keys {
			if err := f.record(b, k, d.gain, others); err != nil {
				return err
			}
		}
	}
	return nil
}

// record folds the accounts of some users in one record.
func (f *folder) record(b *bbolt.Bucket, key []byte, of map[int]int, others map[int]*Subject) error {
	r, err := decodeRecord(b.Get(key))
	if err != nil {
		return err
	}
	sums := make(map[uint32]Sums, len(r.accounts))
	for _, a := range r.accounts {
		n := a.number
		if s := f.subject(n); s != nil && of[f.user(s.UID)] > 0 {
			if n, err = f.number(f.into(s, others)); err != nil {
				return err
			}
		}
		sums[n] = sums[n].Plus(a.Sums)
	}
	r.accounts = r.accounts[:0]
	for n, s := range sums {
		r.accounts = append(r.accounts, numberedSums{n, s})
	}
	slices.SortFunc(r.accounts, func(a, b numberedSums) int { return cmp.Compare(a.number, b.number) })
	return b.Put(key, r.encode())
}

// subject returns the subject with a number, or nil.
func (f *folder) subject(n uint32) *Subject {
	s, known := f.known[n]
	if !known {
		text := f.tx.Bucket(bucketSubjects).Get(binary.BigEndian.AppendUint32(nil, n))
		if s = (&Subject{}); text == nil || json.Unmarshal(text, s) != nil {
			s = nil
		}
		f.known[n] = s
	}
	return s
}

func (f *folder) number(s Subject) (n uint32, err error) {
	n, known := f.numbers[s]
	if !known {
		n, err = number(f.tx, s)
		f.numbers[s] = n
	}
	return n, err
}
