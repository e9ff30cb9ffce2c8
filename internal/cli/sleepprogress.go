package cli

import (
	"fmt"
	"time"

	"ration/internal/abi"
	"ration/internal/humanfmt"
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

// showMove shows on a terminal how far the driver is with a job's memory, until the returned function is called. The
// driver does not tell. What it puts aside becomes host memory of the process, so that is the measure. On the way back
// there is none: the line has the time only.
func (a *app) showMove(r *region.Region, name string) (end func()) {
	if !a.err.tty || a.json {
		return func() {}
	}
	var movers []mover
	if all, err := r.Sleepers(); err == nil { // otherwise the command itself says why
		for i := range all {
			m := mover{pid: all[i].PID, bytes: all[i].Shows()}
			if stat, err := proc.ReadStat(m.pid); err == nil {
				m.rss = stat.RSS
			}
			movers = append(movers, m)
		}
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
			word, err := r.Sleep()
			if err != nil {
				return
			}
			if state := word.State(); state != last {
				line.erase()
				last, line.started = state, time.Now()
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
