package machine

import (
	"path/filepath"

	"ration/internal/job"
)

// policyInForce is a variable for tests.
var policyInForce = job.PolicyInForce

// BesidePolicy returns a function that reports whether a job is beside the policy in force: a user with a ration has made
// it, and not root for the user. All programs of that user are in the user's ration, so nothing needs the limit of
// such a job, which is only that user's word: it counts for no other job. What its programs hold, if they are from
// before the policy, counts. The function asks once for each user, and is for one look at the machine.
func BesidePolicy() func(*Job) bool {
	rationed := map[int]bool{}
	return func(j *Job) bool {
		if j.UID <= 0 || filepath.Dir(filepath.Dir(j.Path)) == job.RootFolder { // only root writes there
			return false
		}
		is, known := rationed[j.UID]
		if !known {
			is = policyInForce() && !exempt(accountOf(j.UID))
			rationed[j.UID] = is
		}
		return is
	}
}
