package cli

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	"ration/check/expect"
)

// What reaps is ended with the process that started it, and is of the user whose regions it is given.
func TestReapCommand(t *testing.T) {
	for _, uid := range []int{0, 1000} {
		cmd := reapCommand(context.Background(), []string{"/a/region", "/b/region"}, uid)
		expect.True(t, strings.Join(cmd.Args, " ") == "ration reap /a/region /b/region" && cmd.SysProcAttr.Pdeathsig == syscall.SIGKILL && cmd.SysProcAttr.Setsid,
			"got", cmd.Args, "with", cmd.SysProcAttr)
		c := cmd.SysProcAttr.Credential
		expect.True(t, os.Geteuid() != 0 || uid == 0 || c != nil && c.Uid == 1000 && c.Gid == nobodyGroup && len(c.Groups) == 0 && !c.NoSetGroups,
			c)
	}
}

// What a reaper's output is worth is kept, and no more of it.
func TestFirstBytes(t *testing.T) {
	var out firstBytes
	for range 1000 {
		n, err := out.Write(make([]byte, 4096))
		expect.Must(t, n == 4096 && err == nil, n, err)
	}
	expect.Equal(t, len(out), 400, "bytes are kept")
}

// The agent serves the series of jobs as it is shipped, so that every alert and every panel has data.
func TestJobMetricsByDefault(t *testing.T) {
	value, err := newAgentCommand(&app{}).Flags().GetBool("job-metrics")
	expect.True(t, err == nil && value, value, err)
}
