package plugin

import (
	"context"
	"errors"
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
// list of preloads. Its limit does not hold. The pod gets one event for each such process, unless
// events are off. The metrics count it, and its GPUs get a taint while it runs, if the operator
// wants that.

// outsider identifies a process.
type outsider struct {
	pid     int
	started uint64 // in clock ticks since boot
}

// outsiders has the processes outside that the last check has found, and whether they were reported. A
// process is reported when two checks have found it: it may have left its job during the first.
type outsiders map[outsider]bool

// watchOutside checks for processes outside their ration every checkPeriod.
func (p *Plugin) watchOutside(ctx context.Context) {
	found := outsiders{}
	for {
		var err error
		if found, err = p.checkOutside(ctx, found, time.Now()); err != nil {
			klog.FromContext(ctx).Error(err, "Looking for processes outside their ration")
		}
		if !pause(ctx, checkPeriod) {
			return
		}
	}
}

// checkOutside checks all processes that hold memory once, and sends events. It returns what the next
// check has to know. Of a GPU whose processes are not known this time, what was known before stays.
func (p *Plugin) checkOutside(ctx context.Context, before outsiders, now time.Time) (outsiders, error) {
	found := outsiders{}
	users, unknown := p.Users(p.uuids())
	records, err := p.Node.Records()
	if users == nil || err != nil {
		return before, errors.Join(unknown, err)
	}
	held := map[int]uint64{} // of all GPUs
	for _, processes := range users {
		for pid, bytes := range processes {
			held[pid] += bytes
		}
	}
	confirmed := map[int]bool{}
	for pid, bytes := range held {
		namespace, pod, jobs := podOf(p.cgroup(pid), records)
		if len(jobs) == 0 || inJob(pid, jobs) {
			continue
		}
		started, err := proc.Started(pid)
		if err != nil {
			continue // it has ended
		}
		key := outsider{pid, started}
		reported, again := before[key]
		confirmed[pid] = again
		if again && !reported && p.EventsPeriod > 0 {
			text := fmt.Sprintf("Process %d (on the node) holds %d MiB of GPU memory without the ration's library, so its limit does not hold "+
				"(is the program static, or was /etc/ld.so.preload changed?)", pid, bytes>>20)
			if err := p.tell(ctx, namespace, []claim.Pod{pod}, ReasonOutside, text, now); err != nil {
				klog.FromContext(ctx).Error(err, "Reporting a process outside its ration", "pid", pid, "pod", klog.KRef(namespace, pod.Name))
			} else {
				reported = true
			}
		}
		found[key] = reported
	}
	if unknown != nil { // a process that is known from before may hold memory of a GPU whose processes are not known now
		for key, reported := range before {
			if started, err := proc.Started(key.pid); held[key.pid] == 0 && err == nil && started == key.started {
				found[key] = reported
			}
		}
	}
	uses := outsideOf(users, confirmed)
	_, last, _ := p.gpus.get()
	for _, uuid := range p.uuids() {
		_, known := users[uuid]
		if use, was := last[uuid]; was && !known {
			uses[uuid] = use
		}
	}
	p.gpus.setOutside(uses)
	return found, unknown
}

// outsideOf returns what some processes hold of each GPU whose processes are known.
func outsideOf(users map[string]map[int]uint64, confirmed map[int]bool) map[string]outsideUse {
	out := map[string]outsideUse{}
	for uuid, processes := range users {
		var use outsideUse
		for pid, bytes := range processes {
			if confirmed[pid] {
				use.processes, use.bytes = use.processes+1, use.bytes+bytes
			}
		}
		out[uuid] = use
	}
	return out
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
