package limit

import (
	"cmp"
	"strings"
)

// Priority says which jobs come first on a device that they share. Zero means that it is not set,
// which is [PriorityNormal].
type Priority uint8

// The priorities. Their values equal abi.PriorityHigh to abi.PriorityLow.
const (
	PriorityHigh   Priority = 1 // jobs of low priority beside it get out of its way
	PriorityNormal Priority = 2 // as if there were no priorities
	PriorityLow    Priority = 3 // gets out of the way of jobs of high priority
)

var priorityNames = [...]string{"unset", "high", "normal", "low"}

// taskPriorities are the values of HAMi-core's variable. Others have no effect.
var taskPriorities = map[string]Priority{"0": PriorityHigh, "1": PriorityLow}

// ParsePriority parses the value of source as a priority: high, normal or low.
func ParsePriority(source, value string) (Priority, error) {
	p, err := parsePriority(value)
	if err != nil {
		return 0, &InputError{Source: source, Value: value, Err: err, Use: priorityUse}
	}
	return p, nil
}

// parsePriority ignores case. An empty text sets nothing.
func parsePriority(s string) (Priority, error) {
	if s == "" {
		return 0, nil
	}
	for p := PriorityHigh; p <= PriorityLow; p++ {
		if strings.EqualFold(s, p.String()) {
			return p, nil
		}
	}
	return 0, errPriority
}

// String returns p's name; for zero, "unset".
func (p Priority) String() string {
	if int(p) >= len(priorityNames) {
		return priorityNames[PriorityNormal]
	}
	return priorityNames[p]
}

// Above reports whether a job with p comes before a job with other.
func (p Priority) Above(other Priority) bool {
	return cmp.Or(p, PriorityNormal) < cmp.Or(other, PriorityNormal)
}

// MarshalText renders p in JSON.
func (p Priority) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText renders.
func (p *Priority) UnmarshalText(text []byte) (err error) {
	if string(text) == priorityNames[0] {
		*p = 0
		return nil
	}
	*p, err = parsePriority(string(text))
	return err
}
