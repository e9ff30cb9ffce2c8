package cli

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"ration/check/expect"
)

// What only some commands need is made when they need it: every command pays for what packages
// make at the start. Bytes are counted, as time depends on the machine.
func TestStartsLazily(t *testing.T) {
	const most, mostOfOthers = 16 << 10, 32 << 10 // of one package; the descriptions of metrics are 12 KiB, a terminal's tables 27
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	trace, err := cmd.CombinedOutput()
	expect.OK(t, err, trace)
	packages := 0
	for _, m := range regexp.MustCompile(`(?m)^init (\S+) @.* (\d+) bytes`).FindAllStringSubmatch(string(trace), -1) {
		if m[1] == "ration/internal/cli" {
			continue // with what its tests make
		}
		most := most
		if !strings.HasPrefix(m[1], "ration/") {
			most = mostOfOthers // as those of Prometheus' library exceed, which internal/metrics does without
		}
		packages++
		var bytes int
		_, err := fmt.Sscan(m[2], &bytes)
		expect.True(t, err == nil && bytes <= most,
			"package", m[1], "makes", bytes, "bytes at every start, want", most, "or less (sync.OnceValue makes it when it is needed)")
	}
	expect.True(t, packages != 0, "no package in the trace", trace)
}
