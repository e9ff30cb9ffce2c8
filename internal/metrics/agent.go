package metrics

// Metrics of the agent itself.
var (
	agentEvents  = desc("agent_events_total", "Events that the agent has seen since it started, by kind.", "kind")
	agentScans   = desc("agent_looks_total", "Scans of the machine since the agent started.")
	agentScan    = desc("agent_look_seconds", "Duration of the latest scan of the machine.")
	agentScanned = desc("agent_look_time_seconds", "Time of the latest scan of the machine, in seconds since 1970.")
	policyUp     = desc("policy_service_up", "Whether the service that makes users' jobs answers; missing if no policy is in force.")
)

// Agent holds an agent's own metrics.
type Agent struct {
	Events      map[string]uint64 // by kind
	Scans       uint64
	ScanSeconds float64
	Scanned     int64 // Unix nanoseconds; 0 before the first scan
	PolicyUp    *bool // whether the policy's service answers; nil if no policy is in force
}

// AgentCollector returns a collector of an agent's own metrics.
func AgentCollector(read func() Agent) Collector {
	return func(e emitter) { e.agent(read()) }
}

func (e emitter) agent(a Agent) {
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
