package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Sockets that were passed to another process are not taken, and no child hears of any.
func TestPassedToAnother(t *testing.T) {
	t.Setenv("LISTEN_PID", fmt.Sprint(os.Getppid()))
	t.Setenv("LISTEN_PIDFDID", "1")
	t.Setenv("LISTEN_FDS", "1")
	t.Setenv("LISTEN_FDNAMES", "ration-agent.socket")
	if l, err := passedSocket("agent.sock"); l != nil || err != nil {
		t.Errorf("got %v, %v", l, err)
	}
	for _, entry := range os.Environ() {
		if strings.HasPrefix(entry, "LISTEN_") {
			t.Errorf("children get %s", entry)
		}
	}
}
