package job

import (
	"testing"
	"time"

	"ration/check/expect"
)

// A user's latest refusal is the last one also after those that may have an entry of their own: it is what the user asks
// about, and it may be the first one that is not the user's own mistake.
func TestDeniedLatest(t *testing.T) {
	all := withDenied(nil, Denied{Time: time.Unix(1, 0), UID: 1000, Own: true, Text: "too much"}, true)
	all = withDenied(all, Denied{Time: time.Unix(2, 0), UID: 1001, Text: "another user"}, true)
	all = withDenied(all, Denied{Time: time.Unix(3, 0), UID: 1000, Text: "no room"}, false)
	expect.Must(t, len(all) == 2, all)
	expect.True(t, all[0].Text == "no room" && !all[0].Own && all[0].Count == 2 && all[0].Earlier == 1 && all[0].Time.Equal(time.Unix(1, 0)), all[0])
	expect.True(t, all[1].Text == "another user" && all[1].Count == 1, all[1])
	all = withDenied(all, Denied{Time: time.Unix(4, 0), UID: 1000, Text: "no room"}, true)
	expect.True(t, len(all) == 3 && all[2].Count == 3, all)
}

// A user who gets a ration settles that user's refusals, and the next one counts again.
func TestDeniedSettle(t *testing.T) {
	all := withDenied(nil, Denied{UID: 1000, Text: "no room"}, true)
	all = withDenied(all, Denied{UID: 1001, Text: "no room"}, true)
	expect.True(t, settle(all, 1000) && all[0].Settled && !all[1].Settled, all)
	expect.True(t, !settle(all, 1000), "changed again")
	all = withDenied(all, Denied{UID: 1000, Text: "no room"}, false)
	expect.True(t, !all[0].Settled && all[0].Count == 2, all)
}
