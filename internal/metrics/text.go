package metrics

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The text format of Prometheus, version 0.0.4, is written here and not by Prometheus' library: that makes itself ready
// whenever a program starts, which took a third of the time of every command of ration. The tests read the text with
// Prometheus' own parser.

// contentType is the type of the text, as Prometheus expects it.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// A Collector sends the metrics of one scrape to an emitter.
type Collector func(emitter)

// metric is a metric that can be exported.
type metric struct {
	name, help string
	labels     []string
}

func desc(name, help string, labels ...string) *metric {
	return &metric{"ration_" + name, help, labels}
}

// emitter takes the samples of one scrape.
type emitter map[*metric]*family

// family has the samples of one metric.
type family struct {
	kind    string
	samples []sample
}

type sample struct {
	labels []string // values, in the order of the metric's names
	value  float64
}

func (e emitter) gauge(d *metric, value float64, labels ...string) { e.add(d, "gauge", value, labels) }

func (e emitter) counter(d *metric, value float64, labels ...string) {
	e.add(d, "counter", value, labels)
}

func (e emitter) add(d *metric, kind string, value float64, labels []string) {
	if len(labels) != len(d.labels) {
		panic(fmt.Sprintf("%s has %d labels, not %d", d.name, len(d.labels), len(labels)))
	}
	f := e[d]
	if f == nil {
		f = &family{kind: kind}
		e[d] = f
	}
	f.samples = append(f.samples, sample{labels, value})
}

// WriteText writes what the collectors send. Metrics, their labels and the values of these are in alphabetical order.
func WriteText(w io.Writer, collectors ...Collector) error {
	e := emitter{}
	for _, collect := range collectors {
		collect(e)
	}
	byName := func(a, b *metric) int { return cmp.Compare(a.name, b.name) }
	for _, m := range slices.SortedFunc(maps.Keys(e), byName) {
		text, err := m.text(e[m])
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			return fmt.Errorf("writing the metrics: %w", err)
		}
	}
	return nil
}

// What a text may not contain between quotes, and after HELP.
var (
	escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
)

// text returns the lines of a metric. Two samples with the same labels are an error: Prometheus would take either.
func (m *metric) text(f *family) ([]byte, error) {
	order := make([]int, len(m.labels)) // positions of the labels, by name
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(m.labels[a], m.labels[b]) })
	compare := func(a, b sample) int {
		for _, i := range order {
			if c := cmp.Compare(a.labels[i], b.labels[i]); c != 0 {
				return c
			}
		}
		return 0
	}
	slices.SortFunc(f.samples, compare)
	var out bytes.Buffer
	fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s %s\n", m.name, escapeHelp.Replace(m.help), m.name, f.kind)
	for n, s := range f.samples {
		if n > 0 && compare(f.samples[n-1], s) == 0 {
			return nil, fmt.Errorf("%s has two values for %q", m.name, s.labels)
		}
		out.WriteString(m.name)
		before := byte('{')
		for _, i := range order {
			out.WriteByte(before)
			out.WriteString(m.labels[i])
			out.WriteString(`="`)
			_, _ = escapeLabel.WriteString(&out, s.labels[i])
			out.WriteByte('"')
			before = ','
		}
		if len(order) > 0 {
			out.WriteByte('}')
		}
		out.WriteByte(' ')
		out.Write(strconv.AppendFloat(nil, s.value, 'g', -1, 64))
		out.WriteByte('\n')
	}
	return out.Bytes(), nil
}
