package cli

import (
	"os"
	"regexp"
	"testing"
	"time"

	"ration/check/expect"
	"ration/internal/abi"
	"ration/internal/proc"
)

// The line says what has been put aside by the growth of host memory, and never more than there is.
func TestMoveText(t *testing.T) {
	movers := []mover{{bytes: 3 << 30}, {bytes: 1 << 30}}
	expect.Equal(t, moveText("nb", abi.Falling, 1<<30, movers, 7*time.Second), "putting nb aside: 1 GiB of 4 GiB, 7 s")
	expect.Equal(t, moveText("nb", abi.Restoring, 1<<30, movers, 7*time.Second), "bringing nb back: 4 GiB, 7 s")
	expect.Equal(t, moveText("nb", abi.Asleep, 0, movers, time.Second)+moveText("nb", abi.Waking, 0, movers, time.Second), "")
	self, err := proc.ReadStat(os.Getpid())
	expect.OK(t, err)
	expect.Equal(t, movedOf([]mover{{os.Getpid(), 1 << 10, 0}}), 1<<10)
	expect.Equal(t, movedOf([]mover{{os.Getpid(), 1 << 40, 1 << 60}, {-1, 1, 0}}), 0)
	expect.True(t, self.RSS > 1<<10, self.RSS)
}

// A sleep and a wake that take long have a line on a terminal, which is gone afterwards. Without a terminal, and
// with --json, there is none.
func TestMoveOnTerminal(t *testing.T) {
	slow(t)
	sleepMachine(t, "150:150") // 7 seconds each way
	p := startSleeper(t, 1024, "--name", "nb", "--mem", "2g")
	s := onTerminal(t, 80, 24, nil, "ration", "sleep", "nb")
	s.shows(`putting nb aside: .* of 1\.\d+ GiB, [1-9]\d* s`)
	s.ends(0)
	s.shows(`^nb is asleep: 1\.\d+ GiB of 1 process put aside in \d+\.\d s\n$`)
	s = onTerminal(t, 80, 24, nil, "ration", "wake", "nb")
	s.shows(`bringing nb back: 1\.\d+ GiB, [1-9]\d* s`)
	s.ends(0)
	p.works()
	out := mustRation(t, "sleep", "nb")
	expect.True(t, regexp.MustCompile(`^nb is asleep: .*\n$`).MatchString(out), out)
	s = onTerminal(t, 80, 24, nil, "ration", "--json", "wake", "nb")
	s.ends(0)
	s.shows(`^\{\n  "job": "nb",\n`)
}

// Root sees the same line for a job of another user.
func TestMoveOfOther(t *testing.T) {
	slow(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	sleepMachine(t, "150:150") // 7 seconds each way
	p, path := startTenant(t, 1024)
	s := onTerminal(t, 200, 24, nil, "ration", "sleep", "--wake", "manual", path)
	s.shows(`putting .* aside: .* of 1\.\d+ GiB, [1-9]\d* s`)
	s.ends(0)
	s = onTerminal(t, 200, 24, nil, "ration", "wake", path)
	s.shows(`bringing .* back: 1\.\d+ GiB, [1-9]\d* s`)
	s.ends(0)
	p.works()
}

// The agent's accounts and metrics, events and ration ps tell of a job that sleeps, and of a job that waits to wake.
func TestSleepIsShown(t *testing.T) {
	slow(t)
	jobs := sleepMachine(t, "0")
	startUntil(t, "watching", nil, "ration", "agent", "--listen", "none")
	p := startSleeper(t, 5000, "--name", "old", "--mem", "6g")
	mustRation(t, "sleep", "old")
	has := func(pattern string, args ...string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			out, err := rationOutput(nil, args...)
			if err == nil && regexp.MustCompile(pattern).MatchString(out) {
				return
			}
			expect.Must(t, time.Now().Before(end), args, "never had", pattern, out, err)
		}
	}
	has(`ration_job_sleep_state\{job_name="old",state="asleep",user=".*"\} 1\n`, "metrics")
	has(`ration_job_memory_aside_bytes\{device="0",job_name="old",user=".*"\} 5\.\d+e\+09\n`, "metrics")
	has(`old +asleep`, "ps")
	has(`asleep: 5\.\d+ GiB of GPU memory is in host memory`, "ps", "old")
	has(`job old of .* sleeps: 5\.`, "events", "--kind", "sleep")
	has(`"asleep_seconds": [1-9]`, "report", "--by", "job", "--json")
	has(`,[1-9]\d*\.\d{3}\n`, "report", "--by", "gpu", "--csv")
	has(`USER .* ASLEEP`, "report")
	has(`<th scope="row">.* 0 NVIDIA Fake Small</th>`, "report", "--by", "gpu", "--html")
	startSleeper(t, 100, "--name", "new", "--mem", "6g")
	p.tell("alloc 1048576") // wants to be awake, and there is no room
	waitQueued(t, jobs, 1)
	has(`ration_job_wake_wait_start_time_seconds\{job_name="old",user=".*"\} 1\.\d+e\+09\n`, "metrics")
	mustRation(t, "sleep", "new")
	text, answered := p.answers(time.Minute)
	expect.True(t, answered && text != "", "it woke", text)
}
