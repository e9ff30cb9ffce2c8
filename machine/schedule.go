package machine

import (
	"maps"
	"path/filepath"
	"slices"
	"time"

	"ration/internal/job"
)

// again returns the same result for another scan.
func (r userResult) again(due time.Time) userResult {
	r.changed, r.due = false, due
	return r
}

func (r userResult) isDue(now time.Time) bool { return !r.due.IsZero() && !now.Before(r.due) }

// takeDeferred returns the hints for this user's folders, including deferred ones.
func (s *userState) takeDeferred(hints map[string]bool) map[string]bool {
	out := s.ownOf(hints)
	maps.Copy(out, s.deferred)
	s.deferred, s.deferredDue = map[string]bool{}, time.Time{}
	return out
}

// ownOf returns the hints for this user's folders.
func (s *userState) ownOf(hints map[string]bool) map[string]bool {
	out := map[string]bool{}
	for folder := range hints {
		if s.lists[folder] != nil || s.jobs[filepath.Join(folder, job.RegionName)] != nil {
			out[folder] = true
		}
	}
	return out
}

// deferJob defers a job to a scan at the given time.
func (s *userState) deferJob(folder string, due time.Time) {
	s.deferred[folder], s.deferredDue = true, earlier(s.deferredDue, due)
}

// soonGap is the shortest delay of deferred work.
const soonGap = 40 * time.Millisecond

// earlier returns the earlier of two times. The zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// restShare bounds what all jobs of a user cost: one part in restShare of one processor's time for scans, and
// as much for deaths. If more users than one have used up theirs, they share it. scanAhead is how much
// processor time a user may use at once after a quiet moment.
const (
	restShare = 10
	scanAhead = 50 * time.Millisecond
)

// restAfter returns when a user may be scanned again that was due at a time, after a scan that had a cost.
func restAfter(due, now time.Time, cost time.Duration, users int) time.Time {
	if earliest := now.Add(-restShare * scanAhead); due.Before(earliest) {
		due = earliest
	}
	return due.Add(time.Duration(restShare*max(users, 1)) * cost)
}

// rest sets when the next full scan of the user, and of others of its account, may start.
func (s *userState) rest(began time.Duration) {
	s.rested = s.quota.restAfter(s.rested, s.cost()-began, false)
}

// restForDeaths is the same for scans for deaths.
func (s *userState) restForDeaths(began time.Duration) {
	s.dyingDue = s.quota.restAfter(s.dyingDue, s.cost()-began, true)
}

// restAfter is restAfter for all users of the account.
func (q *quota) restAfter(due time.Time, cost time.Duration, deaths bool) time.Time {
	if q == nil {
		return restAfter(due, time.Now(), cost, 1)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	at := &q.scans
	if deaths {
		at = &q.deaths
	}
	*at = restAfter(*at, time.Now(), cost, q.resting)
	return *at
}

// waitForAccount applies to the user what others of its account have used.
func (s *userState) waitForAccount() {
	if s.quota != nil {
		s.quota.mu.Lock()
		defer s.quota.mu.Unlock()
		s.rested, s.dyingDue = later(s.rested, s.quota.scans), later(s.dyingDue, s.quota.deaths)
	}
}

// scanForDeaths finds processes that have ended, while the user's jobs rest. It checks folders with
// a new hint, and jobs with a process that was about to end. All other hints wait. It may use as
// much processor time as the full scans do.
func (u *userScan) scanForDeaths(now time.Time, hints map[string]bool) userResult {
	s := &u.state
	deferred, dying := s.deferred, s.dying
	fresh := s.ownOf(hints)
	s.deferred, s.dying = maps.Clone(fresh), map[string]bool{}
	maps.Copy(s.deferred, deferred)
	maps.Copy(fresh, dying)
	if now.Before(s.dyingDue) || len(fresh) == 0 {
		s.dying = fresh
		return u.last.again(s.untilDeaths(now))
	}
	began, changed, p := s.cost(), false, budgetForAll()
	for folder := range fresh {
		t := s.jobs[filepath.Join(folder, job.RegionName)]
		if t == nil || t.ended || !t.known {
			continue
		}
		if s.cost()-began > deathsCost {
			s.dying[folder] = true
			continue
		}
		open := t.dir >= 0
		news, there := t.look(p, s.buf, onlyDeath)
		if !open {
			t.close()
		}
		changed = changed || news && there // the next full scan notices a removed folder
		if there && !t.endingSince.IsZero() && (t.late || t.soon(now)) {
			s.dying[folder] = true
		}
	}
	out := u.last.again(time.Time{})
	if changed {
		s.divide()
		out = s.collect(p, u.last.bases)
	}
	s.restForDeaths(began)
	out.due = s.untilDeaths(now)
	return out
}

// untilDeaths returns when the next scan is due while the user's jobs rest.
func (s *userState) untilDeaths(now time.Time) (due time.Time) {
	if len(s.deferred) > 0 {
		due = s.rested
	}
	if len(s.dying) > 0 {
		due = earlier(due, later(s.dyingDue, now.Add(soonGap)))
	}
	return due
}

// renewCost and deathsCost bound the thread time that one scan spends on reading old jobs again,
// and on finding deaths while the other jobs rest. A death that happens meanwhile waits no longer
// than that.
const (
	renewCost  = 20 * time.Millisecond
	deathsCost = 20 * time.Millisecond
)

// renew reads the jobs that were read longest ago, a few in each scan. Reading all of them in one
// scan would delay other changes.
func (s *userState) renew(now time.Time, read func(t *tracked)) {
	var old []*tracked
	for _, t := range s.scannedJobs() {
		if t.isOld(now) {
			old = append(old, t)
		}
	}
	slices.SortFunc(old, func(a, b *tracked) int { return a.read.Compare(b.read) })
	began := s.cost()
	for _, t := range old {
		if read(t); s.cost()-began > renewCost {
			return
		}
	}
}
