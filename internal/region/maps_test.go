package region

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"ration/check/expect"
)

func TestMentions(t *testing.T) {
	word := []byte(" 00:1f 4711 ")
	line := "7f0000000000-7f0000001000 rw-s 00000000 00:1f 4711 /run/ration/train/region\n"
	other := "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
	long := strings.Repeat(other, 100_000/len(other))
	for _, c := range []struct {
		name string
		maps io.Reader
		want bool
	}{
		{"there", strings.NewReader(other + line + other), true},
		{"not there", strings.NewReader(other), false},
		{"far away", strings.NewReader(long + line), true},
		{"not far away either", strings.NewReader(long), false},
		{"in pieces", iotest.OneByteReader(strings.NewReader(other + line)), true},
		{"empty, as for a process that ends", strings.NewReader(""), true},
		{"unreadable", iotest.ErrReader(errors.New("no")), true},
	} {
		expect.Equal(t, mentions(c.maps, word, []byte(" /elsewhere\n")), c.want, c.name)
	}
	endless := &counting{line: []byte(other)}
	expect.True(t, mentions(endless, word) && endless.bytes <= maxMaps+1<<20, "of an endless list", endless.bytes, "bytes were read")
}

// counting is an endless list.
type counting struct {
	line  []byte
	bytes int
}

func (c *counting) Read(b []byte) (int, error) {
	n := copy(b, bytes.Repeat(c.line, len(b)/len(c.line)+1))
	c.bytes += n
	return n, nil
}
