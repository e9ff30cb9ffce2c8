package metrics

import "github.com/prometheus/client_golang/prometheus"

// Metrics of the agent itself.
var (
	agentEvents  = desc("agent_events_total", "Events that the agent has seen since it started, by kind.", "kind")
	agentScans   = desc("agent_looks_total", "Scans of the machine since the agent started.")
	agentScan    = desc("agent_look_seconds", "Duration of the latest scan of the machine.")
	agentScanned = desc("agent_look_time_seconds", "Time of the latest scan of the machine, in seconds since 1970.")
	policyUp     = desc("policy_service_up", "Whether the service that makes users' jobs answers; missing if no policy is in force.")
)

var ofAgent = []*metric{agentEvents, agentScans, agentScan, agentScanned, policyUp}

// Agent holds an agent's own metrics.
type Agent struct {
	Events      map[string]uint64 // by kind
	Scans       uint64
	ScanSeconds float64
	Scanned     int64 // Unix nanoseconds; 0 before the first scan
	PolicyUp    *bool // whether the policy's service answers; nil if no policy is in force
}

// AgentCollector returns a collector of an agent's own metrics.
func AgentCollector(read func() Agent) prometheus.Collector { return agentCollector(read) }

type agentCollector func() Agent

// Describe implements prometheus.Collector.
func (agentCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range ofAgent {
		out <- d.described()
	}
}

// Collect implements prometheus.Collector.
func (c agentCollector) Collect(out chan<- prometheus.Metric) {
	a, e := c(), emitter{out}
	for kind, n := range a.Events {
		e.counter(agentEvents, float64(n), kind)
	}
	e.counter(agentScans, float64(a.Scans))
	e.gauge(agentScan, a.ScanSeconds)
	e.gauge(agentScanned, float64(a.Scanned)/1e9)
	if a.PolicyUp != nil {
		up := 0.0
		if *a.PolicyUp {
			up = 1
		}
		e.gauge(policyUp, up)
	}
}
