package child

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// logged is how much of a log is kept, in bytes.
const logged = 8 << 10

// Log returns the end of what the process wrote to standard error, and of the
// output lines that were not kept. It includes all that the process wrote before
// a line that Line has returned.
func (p *Process) Log() string {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	if p.log == nil {
		return p.text
	}
	return tail(p.log)
}

func (p *Process) note(line string) {
	p.logMu.Lock()
	defer p.logMu.Unlock()
	if p.log != nil {
		fmt.Fprintln(p.log, line)
	}
}

// tail returns the end of a file as text.
func tail(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	text := make([]byte, min(info.Size(), logged))
	n, _ := f.ReadAt(text, info.Size()-int64(len(text)))
	return strings.TrimSpace(string(bytes.ToValidUTF8(text[:n], []byte("?"))))
}
