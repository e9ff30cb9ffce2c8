package humanfmt

import (
	"fmt"
	"strings"
)

// Holder is a process and its bytes.
type Holder struct {
	Who   string // pid 4711, or a name everybody knows
	Bytes uint64
}

// Refusal says in one line, on which a person can act, why a request was turned
// down: what was asked, what was free, and who has the rest.
func Refusal(asked, held, limit uint64, top []Holder) string {
	free := uint64(0)
	if limit > held {
		free = limit - held
	}
	text := fmt.Sprintf("asked for %s with %s free of %s", Bytes(asked), Bytes(free), Bytes(limit))
	if len(top) == 0 {
		return text
	}
	var holders []string
	for _, h := range top {
		holders = append(holders, h.Who+" "+Bytes(h.Bytes))
	}
	return text + "; most was held by " + strings.Join(holders, ", ")
}
