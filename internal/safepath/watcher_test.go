package safepath

import (
	"testing"

	"ration/check/expect"
)

// FuzzParseInotify: an event has no more bytes than were read.
func FuzzParseInotify(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 'a', 0, 0, 0})
	f.Add(make([]byte, 15))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, e := range parse(text) {
			expect.True(t, len(e.Name) <= len(text), e.Name)
		}
	})
}
