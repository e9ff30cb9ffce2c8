package notify

import (
	"os"
	"strings"
	"testing"

	"ration/check/expect"
)

// The service's file system is read-only to commands, except for a /tmp of its own (docs/monitoring.md).
func TestUnitLetsCommandsWriteInTmp(t *testing.T) {
	unit, err := os.ReadFile("../../deploy/systemd/ration-notify.service")
	expect.OK(t, err)
	for _, line := range []string{"\nProtectSystem=strict\n", "\nPrivateTmp=yes\n"} {
		expect.True(t, strings.Contains(string(unit), line), line)
	}
}
