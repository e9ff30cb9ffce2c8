package metrics

import "github.com/prometheus/client_golang/prometheus"

// Of the agent.
var (
	agentEvents = desc("agent_events_total", "Events that the agent has seen since it started, by kind.", "kind")
	agentLooks  = desc("agent_looks_total", "Looks at the machine since the agent started.")
	agentLook   = desc("agent_look_seconds", "How long the latest look at the machine took.")
	agentLooked = desc("agent_look_time_seconds", "When the latest look at the machine was made, in seconds since 1970.")
)

var ofAgent = []*prometheus.Desc{agentEvents, agentLooks, agentLook, agentLooked}

// Agent is what an agent says of itself.
type Agent struct {
	Events      map[string]uint64 // by kind
	Looks       uint64
	LookSeconds float64
	Looked      int64 // Unix nanoseconds; 0 before the first look
}

// AgentCollector returns a collector of what an agent says of itself.
func AgentCollector(read func() Agent) prometheus.Collector { return agentCollector(read) }

type agentCollector func() Agent

// Describe implements prometheus.Collector.
func (agentCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range ofAgent {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c agentCollector) Collect(out chan<- prometheus.Metric) {
	a, e := c(), emitter{out}
	for kind, n := range a.Events {
		e.counter(agentEvents, float64(n), kind)
	}
	e.counter(agentLooks, float64(a.Looks))
	e.gauge(agentLook, a.LookSeconds)
	e.gauge(agentLooked, float64(a.Looked)/1e9)
}
