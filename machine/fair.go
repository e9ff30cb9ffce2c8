package machine

import (
	"maps"
	"path/filepath"
	"slices"

	"ration/internal/safepath"
)

// route returns the hints for each user. A hint names a folder of jobs, or the folder of a job in one. All
// users get a hint that names neither: it may be about a region outside the folders.
func route(users []*userScan, hints map[string]bool) map[*userScan]map[string]bool {
	out := make(map[*userScan]map[string]bool, len(users))
	bases := map[string]*userScan{}
	for _, u := range users {
		out[u] = map[string]bool{}
		for _, folder := range u.last.bases {
			bases[folder] = u
		}
		if u.locked != nil {
			for i := range u.last.jobs {
				bases[filepath.Dir(u.last.jobs[i].Path)] = u
			}
		}
	}
	for folder := range hints {
		u := bases[folder]
		if u == nil {
			u = bases[filepath.Dir(folder)]
		}
		if u != nil {
			out[u][folder] = true
			continue
		}
		for _, u := range users {
			out[u][folder] = true
		}
	}
	return out
}

// boundsOf returns the bounds of each UID of an account. A user and its subordinate users have the part of
// one user.
func (s *scanner) boundsOf(all []*userScan) map[int]bounds {
	uids, wants := map[int]int{}, map[int]int{} // by account
	for _, u := range all {
		if jobs := len(u.last.active) + len(u.last.opened); jobs > 0 || uids[u.account] == 0 {
			uids[u.account]++
			wants[u.account] += jobs + minOpen
		}
	}
	accounts := slices.Sorted(maps.Keys(uids))
	want := make([]int, len(accounts))
	for i, account := range accounts {
		want[i] = wants[account]
	}
	active := s.active
	if !s.opts.Once {
		active = min(active, maxAllActive/max(len(accounts), 1))
	}
	out := map[int]bounds{}
	for i, open := range safepath.Divide(s.files/jobFiles, want) {
		n := uids[accounts[i]]
		out[accounts[i]] = bounds{max(active/n, min(s.active, minActive)), max(open/n, minOpen)}
	}
	return out
}
