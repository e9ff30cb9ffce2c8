package web

import "ration/internal/proc"

// accountOf is a variable for tests.
var accountOf = proc.Account

// accounts returns a cached accountOf, for one drawing.
func accounts() func(uid int) int {
	known := map[int]int{}
	return func(uid int) int {
		account, is := known[uid]
		if !is {
			account = accountOf(uid)
			known[uid] = account
		}
		return account
	}
}

// fairShare returns how many entries of each user to show if at most space entries fit, so
// that no user's entries push out another's. Users with fewer entries than that are shown
// completely. counts is the number of entries by account.
func fairShare(counts map[int]int, space int) (share int) {
	for {
		left, more := space, 0 // left: space left with that share; more: users with more entries
		for _, n := range counts {
			left -= min(n, share)
			if n > share {
				more++
			}
		}
		if more == 0 || left < more {
			return share
		}
		share += left / more
	}
}
