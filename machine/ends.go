package machine

import (
	"maps"
	"path/filepath"
	"slices"
	"time"

	"ration/internal/job"
)

// lookForEnds looks for processes that have ended, while the user's jobs rest: in folders that were
// hinted at just now, or where one was about to end. All else that was hinted at has to wait. It has a part
// of a processor's time of its own, as large as the looks have.
func (u *userReader) lookForEnds(now time.Time, hints map[string]bool) userLook {
	s := &u.state
	late, ends := s.late, s.ends
	fresh := s.ownOf(hints)
	s.late, s.ends = maps.Clone(fresh), map[string]bool{}
	maps.Copy(s.late, late)
	maps.Copy(fresh, ends)
	if now.Before(s.endsDue) || len(fresh) == 0 {
		s.ends = fresh
		return u.last.again(s.untilEnds(now))
	}
	began, changed, p := s.cost(), false, patienceForAll()
	for folder := range fresh {
		w := s.jobs[filepath.Join(folder, job.RegionName)]
		if w == nil || w.ended || !w.known {
			continue
		}
		if s.cost()-began > endsCost {
			s.ends[folder] = true
			continue
		}
		open := w.dir >= 0
		news, there := w.look(p, s.buf, onlyEnd)
		if !open {
			w.close()
		}
		changed = changed || news && there // whose folder is gone is found out by the next look
		if there && !w.unsettled.IsZero() && (w.late || w.soon(now)) {
			s.ends[folder] = true
		}
	}
	out := u.last.again(time.Time{})
	if changed {
		s.divide()
		out = s.collect(p, u.last.bases)
	}
	s.endsDue = dueAfter(s.endsDue, now, (s.cost()-began)/restShare)
	out.putOff = s.untilEnds(now)
	return out
}

// untilEnds returns when another look is worth while, while the user's jobs rest.
func (s *userState) untilEnds(now time.Time) (due time.Time) {
	if len(s.late) > 0 {
		due = s.due
	}
	if len(s.ends) > 0 {
		due = earlier(due, later(s.endsDue, now.Add(soonGap)))
	}
	return due
}

// renewCost and endsCost are what a look spends, of this thread's time, to read jobs that it has read
// long ago, and to look for ends while the others rest: an end that comes meanwhile waits no longer.
const (
	renewCost = 20 * time.Millisecond
	endsCost  = 20 * time.Millisecond
)

// renew reads those that were read longest ago, a few at a look: all at once, they would keep what
// happens meanwhile waiting, again and again, as they were read at once when they were found.
func (s *userState) renew(now time.Time, read func(w *watched)) {
	var old []*watched
	for _, w := range s.looked() {
		if w.isOld(now) {
			old = append(old, w)
		}
	}
	slices.SortFunc(old, func(a, b *watched) int { return a.read.Compare(b.read) })
	began := s.cost()
	for _, w := range old {
		if read(w); s.cost()-began > renewCost {
			return
		}
	}
}
