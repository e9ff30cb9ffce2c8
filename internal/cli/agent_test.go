package cli

import (
	"testing"

	"ration/check/expect"
)

// The agent serves the series of jobs as it is shipped, so that every alert and every panel has data.
func TestJobMetricsByDefault(t *testing.T) {
	value, err := newAgentCommand(&app{}).Flags().GetBool("job-metrics")
	expect.True(t, err == nil && value, value, err)
}
