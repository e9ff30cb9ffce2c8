package cli

import (
	"bytes"
	"errors"
	"testing"

	"ration/check/expect"
	"ration/internal/policy"
)

// Users who keep the ration of before are not said to have no job.
func TestPrintApplied(t *testing.T) {
	for _, c := range []struct {
		result policy.Result
		want   string
	}{
		{policy.Result{Users: []int{1, 2}}, "The policy is in force. 2 users have a job or are exempt.\n"},
		{policy.Result{Users: []int{1, 2}, Failed: []policy.Fail{{UID: 3, Err: errors.New("no room")}}}, "The policy is in force. 2 users have what their rules say, 1 does not.\n"},
		{policy.Result{Users: []int{1, 2}, Later: []policy.Later{{UID: 1, Text: "is on GPU 0"}}, Failed: []policy.Fail{{UID: 3, Err: errors.New("no room")}}},
			"The policy is in force. 1 user has what the rule says, 2 do not.\n"},
		{policy.Result{Users: []int{1}, Later: []policy.Later{{UID: 1, Text: "is on GPU 0"}}}, "The policy is in force. 1 user has a job or is exempt.\n"},
	} {
		var out bytes.Buffer
		a := &app{out: newTerminal(&out), err: newTerminal(&bytes.Buffer{})}
		_ = a.printApplied(c.result)
		expect.Equal(t, out.String(), c.want)
	}
}
