package metrics

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/proc"
	"ration/machine"
)

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

// WriteAgent writes the metrics of a machine, of an agent, and of the agent's process.
func WriteAgent(w io.Writer, m *machine.Machine, opts Options, a Agent) error {
	e := emitter{}
	e.machine(m, opts)
	e.agent(a)
	e.process()
	return e.write(w)
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

// Metrics of this process, with the names that all programs give them.
var (
	processCPU     = &metric{name: "process_cpu_seconds_total", help: "Total user and system CPU time spent in seconds."}
	processMemory  = &metric{name: "process_resident_memory_bytes", help: "Resident memory size in bytes."}
	processStarted = &metric{name: "process_start_time_seconds", help: "Start time of the process since unix epoch in seconds."}
	processFiles   = &metric{name: "process_open_fds", help: "Number of open file descriptors."}
	processMost    = &metric{name: "process_max_fds", help: "Maximum number of open file descriptors."}
)

func (e emitter) process() {
	if st, err := proc.ReadStat(os.Getpid()); err == nil {
		e.counter(processCPU, st.CPU.Seconds())
		e.gauge(processMemory, float64(st.RSS))
		e.gauge(processStarted, startTime())
	}
	if files, err := os.ReadDir("/proc/self/fd"); err == nil {
		e.gauge(processFiles, float64(len(files)-1)) // without the folder's own
	}
	var most unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &most) == nil {
		e.gauge(processMost, float64(most.Cur))
	}
}

// startTime returns when this process started, in seconds since 1970: always the same, also when the clock is set.
var startTime = sync.OnceValue(func() float64 {
	st, _ := proc.ReadStat(os.Getpid()) // was read just now
	return float64(time.Now().Add(-st.Age()).UnixMilli()) / 1e3
})
