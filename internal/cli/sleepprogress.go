package cli

import (
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/node"
	"ration/internal/proc"
	"ration/internal/region"
	"ration/internal/termtext"
)

const (
	moveTick  = 250 * time.Millisecond // how often the line is drawn
	moveShown = time.Second            // a shorter move has no line
)

// mover is a process whose memory the driver moves.
type mover struct {
	pid   int
	bytes uint64 // that it holds, or has aside
	rss   uint64 // its part of the host's memory before the move
}

// moversOf returns the processes of a job that hold memory, or have it aside.
func moversOf(r *region.Region) (out []mover) {
	all, _ := r.Sleepers() // without them the line has no sizes
	for i := range all {
		out = append(out, newMover(all[i].PID, all[i].Shows()))
	}
	return out
}

// moversSeen does the same with read-only means, for root and another user's job.
func moversSeen(j job.Job) (out []mover) {
	status := node.ReadJob(j, node.Options{ReadOnly: true})
	for i := range status.Processes {
		p, bytes := &status.Processes[i], uint64(0)
		for _, h := range p.Holdings {
			bytes += h.Total + h.Aside
		}
		out = append(out, newMover(p.HostPID, bytes))
	}
	return out
}

func newMover(pid int, bytes uint64) mover {
	m := mover{pid: pid, bytes: bytes}
	if stat, err := proc.ReadStat(pid); err == nil {
		m.rss = stat.RSS
	}
	return m
}

// showMoveOfOther is showMove for another user's job, of which root reads copies.
func (a *app) showMoveOfOther(j job.Job, name string) (end func()) {
	if !a.err.tty || a.json {
		return func() {}
	}
	return a.showMove(moversSeen(j), name, func() (abi.Sleep, error) {
		r, err := region.OpenReadOnly(j.Path)
		if err != nil {
			return 0, err
		}
		defer r.Close()
		return r.Sleep()
	})
}

// showMove shows on a terminal how far the driver is with a job's memory, until the returned function is called. The
// driver does not tell. What it puts aside becomes host memory of the process, so that is the measure. On the way back
// there is none: the line has the time only.
func (a *app) showMove(movers []mover, name string, state func() (abi.Sleep, error)) (end func()) {
	if !a.err.tty || a.json {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		line := a.progress()
		defer line.erase()
		tick := time.NewTicker(moveTick)
		defer tick.Stop()
		last := abi.Awake
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			word, err := state()
			if err != nil {
				return
			}
			if now := word.State(); now != last {
				line.erase()
				last, line.started = now, time.Now()
			}
			if span := time.Since(line.started); span >= moveShown {
				if text := moveText(name, last, movedOf(movers), movers, span); text != "" {
					line.show(termtext.Truncate(text, a.err.width-4, "…"))
				}
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// movedOf returns how much the processes have put aside: by how much their host memory has grown.
func movedOf(movers []mover) (bytes uint64) {
	for _, m := range movers {
		if stat, err := proc.ReadStat(m.pid); err == nil {
			bytes += min(m.bytes, stat.RSS-min(stat.RSS, m.rss))
		}
	}
	return bytes
}

// moveText says how far a move is; it is empty while nothing moves.
func moveText(name string, state int, done uint64, movers []mover, span time.Duration) string {
	var all uint64
	for _, m := range movers {
		all += m.bytes
	}
	switch state {
	case abi.Falling:
		return fmt.Sprintf("putting %s aside: %s of %s, %.0f s", oneWord(name), humanfmt.Bytes(done), humanfmt.Bytes(all), span.Seconds())
	case abi.Restoring:
		return fmt.Sprintf("bringing %s back: %s, %.0f s", oneWord(name), humanfmt.Bytes(all), span.Seconds())
	}
	return ""
}
