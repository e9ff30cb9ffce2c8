package policy

import (
	"testing"
	"time"

	"ration/check/expect"
	"ration/machine"
)

// A user whose processes die again and again keeps no other user's removed jobs out, and a job is there once.
func TestRemovedJobsOfEachUser(t *testing.T) {
	at := func(uid, made int) machine.Job {
		return machine.Job{UID: uid, Path: "p", Created: time.Unix(int64(made), 0)}
	}
	all := withRemoved(nil, at(1000, 1))
	for i := range 2 * maxRemoved {
		all = withRemoved(withRemoved(all, at(1001, i+2)), at(1001, i+2))
	}
	expect.Equal(t, len(all), 1+maxRemovedOf)
	expect.Equal(t, all[0].UID, 1000)
	expect.Equal(t, all[maxRemovedOf].Created.Unix(), int64(2*maxRemoved+1))
}
