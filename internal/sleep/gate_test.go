package sleep

import (
	"os/exec"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/proc"
	"ration/internal/region"
)

// A process that works has had the processor for a while before the driver locks it; one that waits needs nothing.
func TestPassed(t *testing.T) {
	start := func(args ...string) region.Sleeper {
		cmd := exec.Command(args[0], args[1:]...)
		expect.OK(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return region.Sleeper{PID: cmd.Process.Pid}
	}
	waits, works := start("sleep", "600"), start("sh", "-c", "while :; do :; done")
	ran := func() time.Duration {
		at, _, err := proc.Thread{PID: works.PID, TID: works.PID}.Running()
		expect.OK(t, err)
		return at
	}
	for begun := ran(); ran() == begun; time.Sleep(time.Millisecond) {
	}
	passed([]region.Sleeper{waits}, time.Hour)
	for range 8 {
		before := ran()
		passed([]region.Sleeper{waits, works}, time.Hour)
		expect.True(t, ran() >= before+enough, "after", ran()-before, "of a processor's time it counts as passed")
	}
	passed([]region.Sleeper{{PID: 1 << 30}}, time.Hour) // has ended
}
