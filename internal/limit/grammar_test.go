package limit

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"ration/check/expect"
)

// TestGrammar runs the tables that shim/test/limit_parse_table.c runs too: the command
// line and the library must read a limit alike.
func TestGrammar(t *testing.T) {
	runTable(t, "testdata/grammar.txt", 100)
	runTable(t, "testdata/compute.txt", 40)
}

func runTable(t *testing.T, path string, least int) {
	table, err := os.ReadFile(path)
	expect.OK(t, err)
	lines := 0
	for line := range strings.Lines(string(table)) {
		if line = strings.TrimSuffix(line, "\n"); line == "" || line[0] == '#' {
			continue
		}
		kind, rest, _ := strings.Cut(line, " ")
		quoted, err := strconv.QuotedPrefix(rest)
		expect.OK(t, err, line)
		text, err := strconv.Unquote(quoted)
		expect.OK(t, err, line)
		got, want := parseAs(kind, text), strings.TrimPrefix(rest[len(quoted):], " ")
		expect.Equal(t, got, want, kind, quoted)
		lines++
	}
	expect.True(t, lines >= least, path, "has only", lines, "lines")
}

// parseAs returns the result of parsing text, as the table writes it.
func parseAs(kind, text string) string {
	var result string
	var err error
	switch kind {
	case "memory":
		var m Memory
		m, err = parseMemory(text)
		switch {
		case m.none:
			result = "none"
		case m.share != 0:
			result = "share " + strconv.Itoa(int(m.share))
		default:
			result = "bytes " + strconv.FormatUint(uint64(m.size), 10)
		}
	case "compute":
		var c Compute
		c, err = parseCompute(text)
		result = "percent " + strconv.Itoa(c.Percent())
		if c == computeNone {
			result = "none"
		}
	case "round":
		var r Round
		r, err = parseRound(text)
		result = "microseconds " + strconv.Itoa(int(r))
	case "policy":
		var p policy
		p, err = parsePolicy(text)
		result = [...]string{"share", "cap", "neither"}[p]
	case "mode":
		var strict bool
		result = "lenient"
		if strict, err = parseMode(text); strict {
			result = "strict"
		}
	case "wait":
		var w WaitAlloc
		w, err = parseWaitAlloc(text)
		switch result = "milliseconds " + strconv.Itoa(int(w)); w {
		case 0:
			result = "unset"
		case waitAllocNone:
			result = "none"
		}
	case "device":
		var d int
		d, err = parseDevice(text)
		result = "device " + strconv.Itoa(d)
	default:
		return "no such kind"
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return result
}
