package gputest

import (
	"strings"
	"time"

	"ration/check/expect"
	"ration/internal/humanfmt"
	"ration/internal/proc"
)

// sleepProgress notes what tells how far the driver is with a move: the program's host memory, and what the driver counts
// for it, at each eighth of the time. The line of ration sleep relies on host memory that grows with what is aside.
func (t *trial) sleepProgress(bytes uint64) {
	t.open(bytes + 2*gib)
	p := t.startSleeper(bytes)
	for _, way := range [][]string{{"sleep", "--wake", "manual", p.job.Name}, {"wake", p.job.Name}} {
		var host, device []uint64
		look := func() {
			stat, err := proc.ReadStat(p.pid)
			expect.OK(t, err)
			status := p.state()
			host, device = append(host, stat.RSS), append(device, p.driverCount(&status))
		}
		look()
		cmd, ended := t.command(way...), make(chan error, 1)
		expect.OK(t, cmd.Start())
		go func() { ended <- cmd.Wait() }()
		for moving := true; moving; look() {
			select {
			case err := <-ended:
				expect.OK(t, err, "ration", way)
				moving = false
			case <-time.After(20 * time.Millisecond):
			}
		}
		t.note("%s of %s: host memory %s; the driver counts %s", way[0], humanfmt.Bytes(bytes), eighths(host), eighths(device))
		if middle := host[len(host)/2]; way[0] == "sleep" && !t.onStandIn() {
			verdict := kept
			if middle < host[0]+bytes/8 || middle > host[0]+bytes/8*7 {
				verdict = missed
			}
			t.note("host memory grows with what is aside: %s", verdict)
		}
	}
	p.whole()
}

// eighths renders the values of a move at each eighth of its time.
func eighths(values []uint64) string {
	var out []string
	for i := range 9 {
		out = append(out, humanfmt.Short(values[i*(len(values)-1)/8]))
	}
	return strings.Join(out, " ")
}
