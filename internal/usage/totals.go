package usage

import (
	"encoding/binary"
	"encoding/json"
	"runtime/debug"
	"slices"

	"go.etcd.io/bbolt"
)

// Totals are the sums of all periods since an account began, also of periods that the file has dropped. They
// never decrease, so they can be exported as counters. The transaction that adds a period to the levels adds it
// to the totals: a killed writer leaves none that the next writer would count again, or would lack.
//
// A job's total belongs to its user, name and device. The project is left out: two runs of one name would
// otherwise take turns in one counter. An account that no hour mentions any more has no total.
var (
	bucketJobTotals  = []byte("job totals")  // UID and Subject without project as JSON: Sums
	bucketUserTotals = []byte("user totals") // UID and name: Sums
)

// maxUserTotals bounds the users that UserTotals returns. Those with the lowest UIDs come first, so delegated UIDs,
// of which one user may have thousands, take no place of a user.
const maxUserTotals = 4096

// jobTotalKey returns the key of a job's total.
func jobTotalKey(s Subject) []byte {
	s.Project = ""
	text, _ := json.Marshal(s) // cannot fail: numbers and strings
	return append(uidKey(s.UID), text...)
}

// userTotalKey returns the key of a user's total.
func userTotalKey(s Subject) []byte { return append(uidKey(s.UID), s.Owner...) }

func uidKey(uid int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(uid)) }

// addTotals adds a period to the totals.
func addTotals(tx *bbolt.Tx, p Period) error {
	jobs, users := tx.Bucket(bucketJobTotals), tx.Bucket(bucketUserTotals)
	for subject, sums := range p.Sums {
		if err := addTo(jobs, jobTotalKey(subject), sums); err != nil {
			return err
		}
		if err := addTo(users, userTotalKey(subject), sums); err != nil {
			return err
		}
	}
	return nil
}

// sweepTotals removes the totals of accounts that are not among the subjects.
func sweepTotals(tx *bbolt.Tx) error {
	jobs, users := map[string]bool{}, map[string]bool{}
	if err := tx.Bucket(bucketSubjects).ForEach(func(_, text []byte) error {
		var s Subject
		if json.Unmarshal(text, &s) == nil {
			jobs[string(jobTotalKey(s))], users[string(userTotalKey(s))] = true, true
		}
		return nil
	}); err != nil {
		return err
	}
	for _, of := range []struct {
		bucket []byte
		used   map[string]bool
	}{{bucketJobTotals, jobs}, {bucketUserTotals, users}} {
		b := tx.Bucket(of.bucket)
		var unused [][]byte // deleting moves a cursor
		if err := b.ForEach(func(k, _ []byte) error {
			if !of.used[string(k)] {
				unused = append(unused, slices.Clone(k))
			}
			return nil
		}); err != nil {
			return err
		}
		for _, k := range unused {
			if err := b.Delete(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// JobTotals returns the totals of jobs on devices, as they are in the file. The project of a subject does not
// matter. Subjects without an account are left out.
func (s *Store) JobTotals(of []Subject) (totals map[Subject]Sums, err error) {
	defer s.guard(&err, debug.SetPanicOnFault(true))
	totals = map[Subject]Sums{}
	return totals, s.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketJobTotals)
		for _, subject := range of {
			text := b.Get(jobTotalKey(subject))
			if text == nil {
				continue
			}
			sums, err := decode(text)
			if err != nil {
				return err
			}
			totals[subject] = sums
		}
		return nil
	})
}

// UserTotals returns the totals of users, as they are in the file: subjects with a UID and a name.
func (s *Store) UserTotals() (totals map[Subject]Sums, err error) {
	defer s.guard(&err, debug.SetPanicOnFault(true))
	totals = map[Subject]Sums{}
	return totals, s.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketUserTotals).Cursor()
		for k, v := c.First(); k != nil && len(totals) < maxUserTotals; k, v = c.Next() {
			sums, err := decode(v)
			if err != nil {
				return err
			}
			if len(k) < 4 {
				return ErrBroken
			}
			totals[Subject{UID: int(binary.BigEndian.Uint32(k)), Owner: string(k[4:])}] = sums
		}
		return nil
	})
}
