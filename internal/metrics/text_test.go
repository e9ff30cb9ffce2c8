package metrics

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"ration/check/expect"
)

func written(t *testing.T, collectors ...Collector) string {
	t.Helper()
	var out bytes.Buffer
	expect.OK(t, WriteText(&out, collectors...))
	return out.String()
}

// parse reads a text as Prometheus does.
func parse(t *testing.T, text string) []*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	expect.OK(t, err, text)
	return slices.Collect(maps.Values(families))
}

func labelsOf(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range m.Label {
		out[l.GetName()] = l.GetValue()
	}
	return out
}

// Prometheus' parser reads what was written: every character of a label and of a help, and every value.
func TestTextIsRead(t *testing.T) {
	odd := &metric{name: "odd", help: "a \\ and\na line, \"quoted\"", labels: []string{"z", "a"}}
	values := map[string]float64{"x\ny": 1, `"`: -0.25, `\`: math.Inf(1), `\n`: math.Inf(-1), "": 1e300, "ä}{,= #": 5e-324}
	families := parse(t, written(t, func(e emitter) {
		for text, value := range values {
			e.gauge(odd, value, text, "first")
		}
	}))
	expect.Must(t, len(families) == 1 && len(families[0].Metric) == len(values), families)
	expect.Equal(t, families[0].GetHelp(), odd.help)
	expect.Equal(t, families[0].GetType(), dto.MetricType_GAUGE)
	for _, m := range families[0].Metric {
		labels := labelsOf(m)
		want, known := values[labels["z"]]
		expect.True(t, known && labels["a"] == "first" && m.Gauge.GetValue() == want, labels, m.Gauge.GetValue())
	}
}

// A label is in the same place in every scrape, and a scrape with two values for one series is an error.
func TestTextOfOneSeries(t *testing.T) {
	d := &metric{name: "m", help: "h", labels: []string{"b", "a"}}
	send := func(labels ...string) Collector {
		return func(e emitter) { e.counter(d, 1, labels...) }
	}
	expect.Equal(t, written(t, send("1", "y"), send("2", "x")), "# HELP m h\n# TYPE m counter\nm{a=\"x\",b=\"2\"} 1\nm{a=\"y\",b=\"1\"} 1\n")
	err := WriteText(io.Discard, send("1", "x"), send("1", "x"))
	expect.True(t, err != nil && strings.Contains(err.Error(), "m has two values"), err)
}

// A scrape over the network is the text, compressed only for a client that can read it; with an error nothing of it is sent.
// Scrapes beyond those that are made at once are refused.
func TestHandler(t *testing.T) {
	d := desc("x", "A number.")
	begun, release := make(chan struct{}, maxScrapes), make(chan struct{})
	h := Handler(time.Minute, func(e emitter) {
		begun <- struct{}{}
		<-release
		e.gauge(d, 1)
	})
	get := func(h http.Handler, accepts string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept-Encoding", accepts)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	answers := make(chan *httptest.ResponseRecorder)
	packed := map[string]bool{"": false, "gzip": true, "br, gzip;q=0.5": true, "identity, gzip;q=0.0": false}
	expect.Equal(t, len(packed), maxScrapes)
	for accepts := range packed {
		go func() {
			w := get(h, accepts)
			w.Header().Set("Asked", accepts)
			answers <- w
		}()
		<-begun
	}
	expect.Equal(t, get(h, "").Code, http.StatusServiceUnavailable)
	close(release)
	for range packed {
		w := <-answers
		body := io.Reader(w.Body)
		if packed[w.Header().Get("Asked")] {
			expect.Equal(t, w.Header().Get("Content-Encoding"), "gzip")
			var err error
			body, err = gzip.NewReader(body)
			expect.OK(t, err)
		}
		text, err := io.ReadAll(body)
		expect.OK(t, err)
		expect.Equal(t, string(text), "# HELP ration_x A number.\n# TYPE ration_x gauge\nration_x 1\n")
		expect.Equal(t, w.Header().Get("Content-Type"), contentType)
	}
	w := get(Handler(time.Minute, func(e emitter) { e.gauge(d, 1); e.gauge(d, 2) }), "")
	expect.True(t, w.Code == http.StatusInternalServerError && !strings.Contains(w.Body.String(), "# HELP"), w.Code, w.Body)
	slow := Handler(time.Millisecond, func(emitter) { time.Sleep(time.Second) })
	expect.Equal(t, get(slow, "").Code, http.StatusServiceUnavailable)
}

// The agent's metrics of its own process are those of this process.
func TestProcessMetrics(t *testing.T) {
	before := time.Now()
	values := map[string]float64{}
	for _, f := range parse(t, written(t, ProcessCollector())) {
		values[f.GetName()] = f.Metric[0].GetGauge().GetValue() + f.Metric[0].GetCounter().GetValue()
	}
	files, err := os.ReadDir("/proc/self/fd")
	expect.OK(t, err)
	expect.Equal(t, int(values["process_open_fds"]), len(files)-1)
	expect.True(t, values["process_max_fds"] >= values["process_open_fds"], values)
	started := time.UnixMilli(int64(1e3 * values["process_start_time_seconds"]))
	expect.True(t, before.Sub(started) >= -time.Second && before.Sub(started) < time.Hour, started)
	expect.True(t, values["process_resident_memory_bytes"] > 1<<20, values)
	_, known := values["process_cpu_seconds_total"]
	expect.True(t, known, values)
}
