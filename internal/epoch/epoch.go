// Package epoch numbers what a process has told, for those who come back with a number and want
// what is newer: the page in a browser, and ration web with its copy of an agent's picture. The
// numbers of one process mean nothing to the next, so each carries the process's own mark.
package epoch

import (
	"crypto/rand"
	"strconv"
	"strings"
)

// Epoch is the mark of a process.
type Epoch string

// New returns one that no other process has.
func New() Epoch { return Epoch(rand.Text()[:10]) }

// Text is a number as it is given out.
func (e Epoch) Text(number uint64) string { return string(e) + "-" + strconv.FormatUint(number, 10) }

// Parse returns a number that was given out, and 0, which is before all of them, for any other text.
func (e Epoch) Parse(text string) uint64 {
	digits, ours := strings.CutPrefix(text, string(e)+"-")
	if !ours {
		return 0
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0
	}
	return number
}
