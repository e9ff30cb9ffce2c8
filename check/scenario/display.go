package scenario

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"ration/check/observer"
	"ration/internal/humanfmt"
	"ration/internal/region"
	"ration/internal/termtext"
)

// Screen is where Demo and Learn print.
type Screen struct {
	Out  io.Writer
	Live bool // a terminal: Demo draws moving bars below the text
	Size func() (columns, rows int)
	Bar  func(share float64, width int) string
	Bold func(string) string
	Dim  func(string) string
	Wrap func(text string, indent int) string

	In   *os.File // a terminal to type on; nil if Learn does the tasks itself
	File *os.File // standard output of the commands that Learn runs
}

// drawEvery is the time between two frames of the bars.
const drawEvery = 80 * time.Millisecond

// display prints events line by line, above moving bars.
type display struct {
	Screen
	limit uint64 // in bytes
	began time.Time

	sync.Mutex                // guards all below, and writing to Out
	rows       []row          // a bar for each
	source     *region.Region // source of the bars; nil before live
	frame      []string       // the bars on the screen, which the next frame replaces
	frames     *observer.Loop // draws the bars; nil if they are not drawn
}

// row is the bar of a process.
type row struct {
	pid  int
	name string
	mark string // "stopped", "killed" or empty
}

func (d *display) title(format string, args ...any) {
	fmt.Fprintf(d.Out, "%s\n\n", d.Wrap(fmt.Sprintf(format, args...), 0))
}

// add adds a bar for a process.
func (d *display) add(name string, pid int) {
	d.Lock()
	defer d.Unlock()
	d.rows = append(d.rows, row{pid: pid, name: name})
}

// mark puts a word beside the bar of a process.
func (d *display) mark(pid int, word string) {
	d.Lock()
	defer d.Unlock()
	for i := range d.rows {
		if d.rows[i].pid == pid {
			d.rows[i].mark = word
		}
	}
}

// name returns the name of a process.
func (d *display) name(pid int) string {
	d.Lock()
	defer d.Unlock()
	for _, r := range d.rows {
		if r.pid == pid {
			return r.name
		}
	}
	return fmt.Sprintf("pid %d", pid)
}

// say prints a line with the time.
func (d *display) say(format string, args ...any) {
	d.Lock()
	defer d.Unlock()
	d.erase()
	at := fmt.Sprintf("%5.1f s  ", time.Since(d.began).Seconds())
	fmt.Fprintf(d.Out, "%s%s\n", d.Dim(at), d.Wrap(fmt.Sprintf(format, args...), len(at)))
	d.draw()
}

// live starts to draw the bars, if the screen is a terminal.
func (d *display) live(r *region.Region) {
	if !d.Live {
		return
	}
	d.source = r
	d.frames = observer.Start(drawEvery, func() error {
		d.Lock()
		defer d.Unlock()
		d.erase()
		d.draw()
		return nil
	})
}

// close removes the bars.
func (d *display) close() {
	if d.frames != nil {
		_ = d.frames.Stop() // drawing returns no error
	}
	d.erase()
}

// erase removes the frame. The terminal may have become narrower since it was drawn, so its lines
// may be wrapped.
func (d *display) erase() {
	if len(d.frame) == 0 {
		return
	}
	columns, rows := d.Size()
	up := 0
	for _, line := range d.frame {
		up += max(1, (termtext.Width(line)+columns-1)/columns)
	}
	fmt.Fprintf(d.Out, "\x1b[%dA\x1b[J", min(up, rows-1))
	d.frame = nil
}

// draw draws a bar for each process, and one for the device.
func (d *display) draw() {
	if d.source == nil {
		return
	}
	processes, err := d.source.Processes()
	if err != nil {
		return
	}
	holdings, err := d.source.Holdings(0, nil)
	if err != nil {
		return
	}
	held := map[int]uint64{} // by PID
	for _, p := range processes {
		for _, h := range holdings {
			if h.Slot == p.Slot {
				held[p.PID] = h.Total
			}
		}
	}
	columns, rows := d.Size()
	frame := []string{""}
	line := func(name, bar, text string) {
		frame = append(frame, termtext.Truncate(fmt.Sprintf("  %-9s %s %s", name, bar, text), columns-1, "…"))
	}
	for _, r := range d.rows {
		bytes, there := held[r.pid]
		if !there && r.mark == "" {
			continue
		}
		line(r.name, d.Bar(float64(bytes)/float64(d.limit), 40), strings.TrimSpace(humanfmt.Bytes(bytes)+"  "+r.mark))
	}
	used := d.source.Used(0)
	line("device", d.Bar(float64(used)/float64(d.limit), 40), fmt.Sprintf("%s of %s", humanfmt.Bytes(used), humanfmt.Bytes(d.limit)))
	if most := max(rows-1, 1); len(frame) > most { // scrolled lines cannot be erased
		frame = frame[len(frame)-most:]
	}
	fmt.Fprint(d.Out, strings.Join(frame, "\n")+"\n")
	d.frame = frame
}
