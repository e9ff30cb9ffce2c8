package web

import "ration/internal/proc"

// accountOf is another one in tests.
var accountOf = proc.Account

// accounts returns accountOf for a drawing: it asks once for each user.
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

// fairShare returns how many of each user's are shown where there is room for so many, so that no user's
// are missing for another's: all of those who have no more than that. counts is how many each has, by
// account.
func fairShare(counts map[int]int, room int) (share int) {
	for {
		left, more := room, 0 // what is left with that share, and users who have more
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
