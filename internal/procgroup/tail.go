package procgroup

import (
	"bytes"
	"strings"
	"sync"
)

// Tail keeps the end of what processes say, for the case that something goes wrong.
type Tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *Tail) Write(b []byte) (int, error) {
	const most = 4096
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-most):]
	return len(b), nil
}

func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(bytes.ToValidUTF8(t.text, []byte("?"))))
}
