package binaries

import (
	"bytes"
	"fmt"
	"io"
	"time"
)

// progressEvery is how often progress is reported: often enough to see that it goes on, and seldom
// enough for a log.
const progressEvery = 20 * time.Second

// progress counts the lines that `go build -v` writes, one for each package that it compiles or
// module that it downloads, and reports them now and then. The last lines are kept for errors.
type progress struct {
	name  string
	out   io.Writer
	last  time.Time
	lines int
	tail  []byte
}

func (p *progress) Write(text []byte) (int, error) {
	p.lines += bytes.Count(text, []byte("\n"))
	p.tail = append(p.tail, text...)
	if over := len(p.tail) - 2000; over > 0 {
		p.tail = p.tail[over:]
	}
	if now := time.Now(); now.Sub(p.last) >= progressEvery {
		p.last = now
		fmt.Fprintf(p.out, "%s: %d packages so far\n", p.name, p.lines)
	}
	return len(text), nil
}
