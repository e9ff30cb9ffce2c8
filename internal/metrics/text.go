package metrics

import (
	"bytes"
	"cmp"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Prometheus's own library is not used: it takes a quarter of the time in which a command starts, whatever the command.

// ContentType is the HTTP type of the text.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// metric is a metric that can be exported.
type metric struct {
	name, help string
	labels     []string
}

// all has the metrics that docs/monitoring.md lists.
var all []*metric

func desc(name, help string, labels ...string) *metric {
	m := &metric{"ration_" + name, help, labels}
	all = append(all, m)
	return m
}

// emitter collects samples, by metric.
type emitter map[*metric]*samples

type samples struct {
	kind  string
	order []int // of the labels, by their names
	lines []string
}

func (e emitter) gauge(m *metric, value float64, labels ...string) {
	e.add(m, "gauge", value, labels)
}

func (e emitter) counter(m *metric, value float64, labels ...string) {
	e.add(m, "counter", value, labels)
}

var (
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func (e emitter) add(m *metric, kind string, value float64, labels []string) {
	s := e[m]
	if s == nil {
		s = &samples{kind: kind}
		for i := range m.labels {
			s.order = append(s.order, i)
		}
		slices.SortFunc(s.order, func(a, b int) int { return cmp.Compare(m.labels[a], m.labels[b]) })
		e[m] = s
	}
	line := []byte(m.name)
	before := byte('{')
	for _, i := range s.order {
		line = append(append(append(line, before), m.labels[i]...), `="`...)
		line = append(append(line, escapeLabel.Replace(labels[i])...), '"')
		before = ','
	}
	if len(s.order) > 0 {
		line = append(line, '}')
	}
	line = strconv.AppendFloat(append(line, ' '), value, 'g', -1, 64)
	s.lines = append(s.lines, string(append(line, '\n')))
}

// write writes the samples in the text format of Prometheus, always in the same order.
func (e emitter) write(w io.Writer) error {
	var out bytes.Buffer
	for _, m := range slices.SortedFunc(maps.Keys(e), func(a, b *metric) int { return cmp.Compare(a.name, b.name) }) {
		s := e[m]
		out.WriteString("# HELP " + m.name + " " + escapeHelp.Replace(m.help) + "\n# TYPE " + m.name + " " + s.kind + "\n")
		slices.Sort(s.lines)
		for _, line := range s.lines {
			out.WriteString(line)
		}
	}
	_, err := w.Write(out.Bytes())
	return err
}
