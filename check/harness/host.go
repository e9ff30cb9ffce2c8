package harness

import (
	"testing"

	"ration/internal/region"
)

// NeedsHost skips a test of what is known of processes by their PIDs on the host, which is what the driver
// lists: in a container they are not known.
func NeedsHost(t testing.TB) {
	t.Helper()
	if !region.OnHost() {
		t.Skip("this is a container, or another PID namespace: the PIDs of the host are not seen")
	}
}
