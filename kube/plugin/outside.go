package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"ration/internal/proc"
	"ration/kube/claim"
	"ration/kube/node"
	"ration/machine"
)

// ReasonOutside is the reason of the events about processes that use a GPU past the library.
const ReasonOutside = "GPUOutsideRation"

// A process of a claim's pod that holds memory of a GPU, as the driver says, and is in no job of the
// claim, has not loaded the library: it is static, of another C library, or its pod has changed the
// list of preloads. Its limit does not hold. The pod gets one event for each such process.

// outsider identifies a process.
type outsider struct {
	pid     int
	started uint64 // in clock ticks since boot
}

// outsiders has the processes outside that the last check has found, and whether they were reported. A
// process is reported when two checks have found it: it may have left its job during the first.
type outsiders map[outsider]bool

// tellOutside checks all processes that hold memory once, and sends events. It returns what the next
// check has to know.
func (p *Plugin) tellOutside(ctx context.Context, before outsiders, now time.Time) (outsiders, error) {
	found := outsiders{}
	var uuids []string
	for _, g := range p.Node.GPUs {
		uuids = append(uuids, g.UUID)
	}
	users, err := p.Users(uuids)
	if err != nil {
		return before, err
	}
	records, err := p.Node.Records()
	if err != nil {
		return before, err
	}
	for pid, bytes := range users {
		namespace, pod, jobs := podOf(p.cgroup(pid), records)
		if len(jobs) == 0 || inJob(pid, jobs) {
			continue
		}
		started, err := proc.Started(pid)
		if err != nil {
			continue // it has ended
		}
		key := outsider{pid, started}
		told, again := before[key]
		if again && !told {
			text := fmt.Sprintf("Process %d (on the node) holds %d MiB of GPU memory without the ration's library, so its limit does not hold "+
				"(is the program static, or was /etc/ld.so.preload changed?)", pid, bytes>>20)
			if err := p.tell(ctx, namespace, []claim.Pod{pod}, ReasonOutside, text, now); err != nil {
				klog.FromContext(ctx).Error(err, "Reporting a process outside its ration", "pid", pid, "pod", klog.KRef(namespace, pod.Name))
			} else {
				told = true
			}
		}
		found[key] = told
	}
	return found, nil
}

// podOf returns the pod that a process belongs to by its cgroup, which no program in a container can
// choose, and the jobs of all claims of that pod. It returns no jobs for a process of no claim.
func podOf(group string, records []*node.Record) (namespace string, of claim.Pod, jobs []string) {
	group = strings.ReplaceAll(group, "_", "-") // systemd's names have no dashes
	for _, r := range records {
		for _, pod := range r.Plan.Pods {
			if pod.UID != "" && strings.Contains(group, "pod"+pod.UID) {
				namespace, of, jobs = r.Plan.Namespace, pod, append(jobs, r.Jobs()...)
			}
		}
	}
	return namespace, of, jobs
}

func cgroupOf(pid int) string {
	group, _ := proc.Cgroup(pid)
	return group
}

// inJob reports whether the kernel names a process as one of some jobs.
func inJob(pid int, jobs []string) bool {
	for _, name := range jobs {
		j, err := machine.ReadJob(name)
		if err != nil {
			return true // it is being removed: nothing can be said
		}
		for _, process := range j.Processes {
			if process.HostPID == pid {
				return true
			}
		}
	}
	return false
}
