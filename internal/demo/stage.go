package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/region"
)

// Screen is where the story is told.
type Screen struct {
	Out  io.Writer
	Live bool // a terminal: bars move at its bottom
	Bar  func(share float64, width int) string
	Dim  func(string) string
	Wrap func(text string, indent int) string
}

// frameEvery is how often bars move.
const frameEvery = 80 * time.Millisecond

// stage tells what happens, line after line, above bars that move.
type stage struct {
	Screen
	limit uint64
	began time.Time

	sync.Mutex
	actors []*actorOn
	view   *region.Region
	lines  int // of bars on the screen, to be drawn over
	done   chan struct{}
	ended  sync.WaitGroup
}

// actorOn is a process on stage.
type actorOn struct {
	slot, pid int
	name      string
	mark      string // stopped, killed
}

func newStage(s Screen, limit uint64) *stage {
	return &stage{Screen: s, limit: limit, began: time.Now(), done: make(chan struct{})}
}

func (s *stage) title(format string, args ...any) {
	fmt.Fprintf(s.Out, "%s\n\n", s.Wrap(fmt.Sprintf(format, args...), 0))
}

// cast puts a process on stage.
func (s *stage) cast(slot int, name string, pid int) {
	s.Lock()
	defer s.Unlock()
	s.actors = append(s.actors, &actorOn{slot: slot, name: name, pid: pid})
}

// mark says what was done to a process.
func (s *stage) mark(pid int, what string) {
	s.Lock()
	defer s.Unlock()
	for _, a := range s.actors {
		if a.pid == pid {
			a.mark = what
		}
	}
}

// name is what a process is called here.
func (s *stage) name(pid int) string {
	s.Lock()
	defer s.Unlock()
	for _, a := range s.actors {
		if a.pid == pid {
			return a.name
		}
	}
	return fmt.Sprintf("pid %d", pid)
}

// say tells what happened.
func (s *stage) say(format string, args ...any) {
	s.Lock()
	defer s.Unlock()
	s.wipe()
	at := fmt.Sprintf("%5.1f s  ", time.Since(s.began).Seconds())
	fmt.Fprintf(s.Out, "%s%s\n", s.Dim(at), s.Wrap(fmt.Sprintf(format, args...), len(at)))
	s.draw()
}

// live starts the bars.
func (s *stage) live(view *region.Region) {
	s.view = view
	if !s.Live {
		return
	}
	s.ended.Go(func() {
		for {
			select {
			case <-s.done:
				return
			case <-time.After(frameEvery):
				s.Lock()
				s.wipe()
				s.draw()
				s.Unlock()
			}
		}
	})
}

// close takes the bars away.
func (s *stage) close() {
	close(s.done)
	s.ended.Wait()
	s.wipe()
}

func (s *stage) wipe() {
	if s.lines > 0 {
		fmt.Fprintf(s.Out, "\x1b[%dA\x1b[J", s.lines)
		s.lines = 0
	}
}

// draw draws a bar for each process, and one for the device.
func (s *stage) draw() {
	if !s.Live || s.view == nil {
		return
	}
	holdings, err := s.view.Holdings(0, nil)
	if err != nil {
		return
	}
	held := map[int]uint64{}
	for _, h := range holdings {
		held[h.Slot] = h.Total
	}
	var frame strings.Builder
	lines := 1
	frame.WriteByte('\n')
	line := func(name, bar, text string) {
		fmt.Fprintf(&frame, "  %-9s %s %s\n", name, bar, text)
		lines++
	}
	for _, a := range s.actors {
		bytes, there := held[a.slot]
		if !there && a.mark == "" {
			continue
		}
		line(a.name, s.Bar(float64(bytes)/float64(s.limit), 40), strings.TrimSpace(humanfmt.Bytes(bytes)+"  "+a.mark))
	}
	used := s.view.Used(0)
	line("device", s.Bar(float64(used)/float64(s.limit), 40), fmt.Sprintf("%s of %s", humanfmt.Bytes(used), humanfmt.Bytes(s.limit)))
	fmt.Fprint(s.Out, frame.String())
	s.lines = lines
}
