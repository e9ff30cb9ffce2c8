package humanfmt

import (
	"fmt"
	"strings"
)

// Holder is a process and its bytes.
type Holder struct {
	Name  string // its name, or pid 4711
	Bytes uint64
}

// Refusal says in one line why a request was refused: how much was requested, how much was free,
// and which processes held most.
func Refusal(asked, held, limit uint64, top []Holder) string {
	free := uint64(0)
	if limit > held {
		free = limit - held
	}
	text := fmt.Sprintf("asked for %s with %s free of %s", Bytes(asked), Bytes(free), Bytes(limit))
	if limit == 0 {
		text = fmt.Sprintf("asked for %s, and the job had none of the device", Bytes(asked))
	}
	if len(top) == 0 {
		return text
	}
	var holders []string
	for _, h := range top {
		holders = append(holders, h.Name+" "+Bytes(h.Bytes))
	}
	return text + "; most was held by " + strings.Join(holders, ", ")
}
