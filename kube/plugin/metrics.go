package plugin

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"
)

// The plugin's own metrics. Those of the jobs are the agent's.

// metrics has those that are counted.
type metrics struct {
	seconds prometheus.Histogram
	errors  prometheus.Counter
}

const metricsPrefix = "ration_kubelet_plugin_"

func newMetrics() metrics {
	return metrics{
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: metricsPrefix + "prepare_seconds", Help: "How long the plugin took to prepare a claim.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30}}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{Name: metricsPrefix + "prepare_errors_total", Help: "Claims that were not prepared; the kubelet tries again."}),
	}
}

// prepared counts a call for a claim.
func (m metrics) prepared(took time.Duration, err error) {
	if err != nil {
		m.errors.Inc()
		return
	}
	m.seconds.Observe(took.Seconds())
}

// Metrics returns a handler for Prometheus.
func (p *Plugin) Metrics() http.Handler {
	return promhttp.HandlerFor(p.registry(), promhttp.HandlerOpts{})
}

func (p *Plugin) registry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(p.metrics.seconds, p.metrics.errors, gpuCollector{p})
	return registry
}

// gpuCollector collects what is known of the GPUs and claims when it is asked.
type gpuCollector struct{ *Plugin }

var (
	claimsDesc    = prometheus.NewDesc(metricsPrefix+"claims", "Claims that are prepared on this node.", nil, nil)
	healthyDesc   = prometheus.NewDesc(metricsPrefix+"gpu_healthy", "1 if the GPU works.", []string{"uuid"}, nil)
	processesDesc = prometheus.NewDesc(metricsPrefix+"outside_processes", "Processes of pods with a claim that use the GPU without the library, so that no limit holds them.", []string{"uuid"}, nil)
	bytesDesc     = prometheus.NewDesc(metricsPrefix+"outside_memory_bytes", "Memory that these processes have of the GPU.", []string{"uuid"}, nil)
)

// Describe sends the descriptions of the metrics.
func (c gpuCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{claimsDesc, healthyDesc, processesDesc, bytesDesc} {
		to <- d
	}
}

// Collect sends the metrics.
func (c gpuCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	if records, err := c.Node.Records(); err == nil {
		gauge(claimsDesc, float64(len(records)))
	} else {
		klog.FromContext(c.running).Error(err, "Counting claims")
	}
	sick, outside, _ := c.gpus.get()
	for _, g := range c.Node.Devices() {
		healthy := 1.0
		if _, is := sick[g.UUID]; is {
			healthy = 0
		}
		gauge(healthyDesc, healthy, g.UUID)
		if use, known := outside[g.UUID]; known {
			gauge(processesDesc, float64(use.processes), g.UUID)
			gauge(bytesDesc, float64(use.bytes), g.UUID)
		}
	}
}
