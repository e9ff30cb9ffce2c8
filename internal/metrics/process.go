package metrics

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/proc"
)

// Metrics of this process, as Prometheus' libraries name them.
var (
	processCPU      = &metric{name: "process_cpu_seconds_total", help: "Total user and system CPU time spent in seconds."}
	processFiles    = &metric{name: "process_open_fds", help: "Number of open file descriptors."}
	processMaxFiles = &metric{name: "process_max_fds", help: "Maximum number of open file descriptors."}
	processMemory   = &metric{name: "process_resident_memory_bytes", help: "Resident memory size in bytes."}
	processStarted  = &metric{name: "process_start_time_seconds", help: "Start time of the process since unix epoch in seconds."}
)

// ProcessCollector returns a collector of this process's own metrics. What the kernel does not say is left out.
func ProcessCollector() Collector {
	var started time.Time
	if self, err := proc.ReadStat(os.Getpid()); err == nil {
		started = time.Now().Add(-self.Age())
	}
	return func(e emitter) {
		if self, err := proc.ReadStat(os.Getpid()); err == nil {
			e.gauge(processMemory, float64(self.RSS))
			e.counter(processCPU, self.CPU.Seconds())
		}
		if !started.IsZero() {
			e.gauge(processStarted, float64(started.UnixMilli())/1e3)
		}
		if files, err := os.ReadDir("/proc/self/fd"); err == nil {
			e.gauge(processFiles, float64(len(files)-1)) // without that of the folder
		}
		var most unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &most) == nil {
			e.gauge(processMaxFiles, float64(most.Cur))
		}
	}
}
