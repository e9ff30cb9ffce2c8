// Package node prepares claims on a node: it makes a job for each ration of the claim, and a CDI
// spec that puts containers of the claim's pods into it.
//
// The kubelet requests this, and may repeat a request that is done already. This process and the
// kubelet may die at any point. So the state on disk decides (kube/node/PROTOCOL.md and
// models/claim.pml):
//
//	STATE/UID.json                   the record: the content of the claim. It is written before anything
//	                                 is made, and removed after everything else, so that nothing exists
//	                                 without a record
//	/run/ration/k8s-UID              the job, with the region, the limits and the list of preloads
//	CDI/gpu.ration-claim-UID.json    the CDI spec: containers can be started while it exists
//
// Every process that changes these files holds the lock of the claim (lock.go). Claims are prepared
// in parallel.
package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"

	"tags.cncf.io/container-device-interface/specs-go"

	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/kube/claim"
	"ration/kube/slices"
)

// JobPrefix is the prefix of names of jobs for claims.
const JobPrefix = "k8s-"

// Node prepares claims on a node with GPUs.
type Node struct {
	GPUs    []slices.GPU // at the start; Devices returns those of now
	Driver  *gpu.Driver  // the devices at the start, for the jobs' limits; nil with FakeGPU
	FakeGPU string       // a stand-in machine, such as h200x2; each job has its own
	State   string       // folder of the records
	CDI     string       // folder of the CDI specs

	// Hardware returns the edits that let a container use these GPUs: device nodes, and files of
	// the driver. It is called without the lock, because it may take long. nil with FakeGPU.
	Hardware func(uuids []string) (specs.ContainerEdits, error)

	// Containers returns the containers of pods that use a claim, by the pods' UIDs; none for a pod
	// that does not exist any more. It is called without the lock, once for each pod, because it may
	// take long. If it is nil, containers are unknown, and are not checked.
	Containers func(namespace, claim string, pods []claim.Pod) (map[string][]Container, error)

	// Warn is called if a claim was unprepared while processes used it. It may be nil.
	Warn func(text string)

	// Reached is called at each point at which a test may kill the process.
	Reached func(point string)

	now     atomic.Pointer[devices]                  // nil as long as there are those of the start
	decoded atomic.Pointer[map[string]decodedRecord] // what Records found last, by UID; nil before
	booking bookingQueue
}

// Points at which a process may be killed, in the order of Prepare and Unprepare. Every process sees
// everything before a point.
const (
	PointRecorded    = "recorded"     // the record says that the claim is being prepared
	PointJob         = "job made"     // after each job
	PointSpec        = "spec written" // containers can be started
	PointPrepared    = "prepared"     // the record says so; the kubelet has no answer yet
	PointSpecRemoved = "spec removed"
	PointJobRemoved  = "job removed" // after each job
	PointForgotten   = "record removed"
	PointBooked      = "resize booked" // of Resize
	PointResized     = "limits set"
)

// Points lists all of them.
var Points = []string{PointRecorded, PointJob, PointSpec, PointPrepared, PointSpecRemoved, PointJobRemoved, PointForgotten}

func (n *Node) reached(point string) {
	if n.Reached != nil {
		n.Reached(point)
	}
}

// Device is a CDI device, for a result of a claim.
type Device struct {
	claim.Result
	CDI string // the qualified name
}

// Prepare makes a claim's jobs and its CDI spec, unless they exist, and returns the devices.
func (n *Node) Prepare(p claim.Plan) ([]Device, error) {
	if err := claim.CheckUID(p.UID); err != nil {
		return nil, err
	}
	// The API server and the driver are asked before the lock is taken: they may take long.
	p, err := n.withContainers(p)
	if err != nil {
		return nil, err
	}
	hardware, err := n.hardware(p)
	if err != nil {
		return nil, err
	}
	l, err := n.lock(p.UID)
	if err != nil {
		return nil, err
	}
	defer l.unlock()
	r, err := n.book(l, p)
	if err != nil {
		return nil, err
	}
	if err := n.makeJobs(r, kubernetes(p)); err != nil {
		return nil, err
	}
	if err := n.writeSpec(r, hardware); err != nil {
		return nil, err
	}
	n.reached(PointSpec)
	if err := n.write(r); err != nil {
		return nil, err
	}
	n.reached(PointPrepared)
	return cdiDevices(p), nil
}

// book returns the record of a claim. If there is none yet, it writes one, if the claim fits beside
// the others: from then on, the claim counts for them.
func (n *Node) book(l *claimLock, p claim.Plan) (*Record, error) {
	r, err := n.read(p.UID)
	switch {
	case errors.Is(err, os.ErrNotExist):
		r = nil
	case err != nil && !errors.Is(err, ErrRecord):
		return nil, err
	case err != nil || !r.consistsOf(p):
		// The claim was allocated again after an end that was missed; or the record is of another
		// version, and the meaning of its jobs is unknown.
		if err := n.remove(&Record{Plan: p}); err != nil {
			return nil, fmt.Errorf("removing what claim %s/%s had before: %w", p.Namespace, p.Name, err)
		}
		r = nil
	}
	if r == nil {
		r = &Record{}
	} else if p.Rations = r.Plan.Rations; reflect.DeepEqual(r.Plan, p) { // with the indexes that the job was made with
		return r, n.reserve(l, r, func() error { return nil })
	}
	r.Plan = p // it may have other pods now
	staged, err := n.stage(r)
	if err != nil {
		return nil, err
	}
	defer staged.Close()
	if err := n.reserve(l, r, staged.Place); err != nil {
		return nil, err
	}
	n.reached(PointRecorded)
	return r, nil
}

// cdiDevices returns the devices of a claim, as reported to the kubelet.
func cdiDevices(p claim.Plan) (out []Device) {
	for _, r := range p.Results {
		out = append(out, Device{r, Kind + "=" + deviceName(p, r.Ration)})
	}
	return out
}

// Unprepare removes everything that Prepare made. It uses only the UID, because the claim may not
// exist any more, and another claim may have its name.
func (n *Node) Unprepare(uid string) error {
	if err := claim.CheckUID(uid); err != nil {
		return err
	}
	l, err := n.lock(uid)
	if err != nil {
		return err
	}
	defer l.unlock()
	return n.unprepare(uid)
}

func (n *Node) unprepare(uid string) error {
	r, err := n.read(uid)
	switch {
	case err == nil:
	case errors.Is(err, os.ErrNotExist), errors.Is(err, ErrRecord):
		// The content of the record is lost, but its job and its spec have the UID in their names.
		r = &Record{Plan: claim.Plan{UID: uid}}
	default:
		return err
	}
	return n.remove(r)
}

// remove removes the spec first, so that no container is started in a job that is being removed,
// and the record last.
func (n *Node) remove(r *Record) error {
	if err := removeFile(n.specFile(r.Plan.UID)); err != nil {
		return err
	}
	n.reached(PointSpecRemoved)
	jobs, err := jobsOf(r.Plan.UID)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if err := n.removeJob(j); err != nil {
			return err
		}
		n.reached(PointJobRemoved)
	}
	if err := removeFile(n.recordFile(r.Plan.UID)); err != nil {
		return err
	}
	n.reached(PointForgotten)
	return nil
}

// removeJob removes a job, whether or not a process uses it: the containers have ended, and a process that a tenant has
// handed the job's files must not keep the claim.
func (n *Node) removeJob(j job.Job) error {
	left, err := job.ForceRemove(j)
	if len(left) > 0 && n.Warn != nil {
		n.Warn(job.LeftText(j, left))
	}
	return err
}

// jobsOf returns the jobs of a claim in any state, including incomplete ones.
func jobsOf(uid string) (out []job.Job, err error) {
	entries, err := os.ReadDir(job.Folder())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing jobs: %w", err)
	}
	for _, e := range entries {
		if of, ok := claimOf(e.Name()); ok && of == uid {
			out = append(out, job.Job{Name: e.Name(), Path: filepath.Join(job.Folder(), e.Name(), job.RegionName)})
		}
	}
	return out, nil
}

// separator separates a claim's UID from a request's number in the name of a job. No UID contains
// it.
const separator = "."

// jobName returns the name of the job of a claim's ration.
func jobName(p claim.Plan, ration int) string { return JobPrefix + deviceName(p, ration) }

// deviceName returns the name of the CDI device of a claim's ration.
func deviceName(p claim.Plan, ration int) string {
	if p.Rations[ration].Request == "" {
		return p.UID
	}
	return fmt.Sprintf("%s%s%d", p.UID, separator, ration)
}

// claimOf returns the UID of the claim that a job belongs to.
func claimOf(name string) (uid string, ok bool) {
	uid, ok = strings.CutPrefix(name, JobPrefix)
	uid, _, _ = strings.Cut(uid, separator)
	return uid, ok && claim.CheckUID(uid) == nil
}

// makeJobs makes the missing jobs of a record, and records their claim and pods.
func (n *Node) makeJobs(r *Record, k job.Kubernetes) error {
	created := make([]int64, len(r.Plan.Rations))
	for i := range r.Plan.Rations {
		j := job.Job{Name: jobName(r.Plan, i)}
		j.Path = filepath.Join(job.Folder(), j.Name, job.RegionName)
		since, standing := job.StandingSince(j)
		if known := r.created(i); standing && known != 0 && known != since {
			// This is not the job that was made here, so its limits are unknown.
			if err := n.removeJob(j); err != nil {
				return err
			}
			standing = false
		} else if standing && !usableJob(j.Name) {
			// No program can join it: a container may have damaged its region. Not by force: processes in it would keep
			// what they hold beside the new job's limits.
			if err := job.Remove(j, true); err != nil {
				return fmt.Errorf("job %s cannot be used any more: %w", j.Name, err)
			}
			standing = false
		}
		if !standing {
			if err := n.makeJob(j.Name, r.Plan.Rations[i]); err != nil {
				return err
			}
			if since, standing = job.StandingSince(j); !standing {
				return fmt.Errorf("job %s was removed at once (does another program remove jobs here?)", j.Name)
			}
			n.reached(PointJob)
		}
		created[i] = since
		if err := job.WriteKubernetes(j, k); err != nil {
			return err
		}
	}
	r.Created = created
	return nil
}

func usableJob(name string) bool {
	_, err := launch.FindStanding(name)
	return err == nil
}

// closed is the limit of devices outside the claim. No program can use a device that has this
// limit.
const closed = limit.Least

var fakeMachine sync.Mutex

// makeJob makes a job with the limits of a ration. Only root can change these limits.
func (n *Node) makeJob(name string, ration claim.Ration) error {
	var warnings []string
	plan := launch.Plan{Name: name, FakeGPU: n.FakeGPU, Driver: n.driver(), Warn: func(text string) { warnings = append(warnings, text) },
		Sources: launch.Sources{Memory: "memory", Compute: "compute", ComputeMax: "computeMax"}}
	plan.Settings.Memory.Default, plan.Settings.Priority = limit.MemorySize(closed), ration.Priority
	plan.Settings.WaitAlloc = ration.WaitAlloc
	plan.Present = map[string]int{}
	for _, s := range ration.Shares {
		plan.Present[s.UUID] = s.Index
		plan.Settings.Memory.Device[s.Index] = limit.MemorySize(limit.Size(s.Memory))
		if s.Compute > 0 {
			plan.Settings.Compute.Device[s.Index] = limit.ComputePercent(s.Compute)
		}
		if s.ComputeMax > 0 {
			plan.Settings.ComputeMax.Device[s.Index] = limit.ComputePercent(s.ComputeMax)
		}
	}
	if n.FakeGPU != "" { // a process's environment says which stand-in machine is opened
		fakeMachine.Lock()
		defer fakeMachine.Unlock()
	}
	err := plan.Create()
	if errors.Is(err, job.ErrInUse) {
		return fmt.Errorf("making job %s: %w", name, err)
	}
	if err != nil {
		return err
	}
	if len(warnings) > 0 {
		return fmt.Errorf("making job %s: %s", name, strings.Join(warnings, "; "))
	}
	return nil
}

// ErrOverbooked is returned for a claim that does not fit beside those that are prepared.
var ErrOverbooked = errors.New("overbooked")

// checkRoom returns an error if a device has too little left for a claim, with what it has beyond its
// allocation, beside the prepared ones. The scheduler should prevent that; this check is for the case
// that it does not.
func (n *Node) checkRoom(p claim.Plan, extra map[string]uint64, records []*Record) error {
	for _, g := range n.Devices() {
		memory, compute := p.Of(g.Name())
		if memory == 0 {
			continue
		}
		memory += extra[g.Name()]
		others := 0
		for _, r := range records {
			if m, c := r.Plan.Of(g.Name()); m > 0 {
				memory, compute, others = memory+m+r.Extra[g.Name()], compute+c, others+1
			}
		}
		if memory > g.Capacity() || compute > 100 {
			return fmt.Errorf("device %s is %w: with claim %s/%s there would be %d bytes and %d%% in %d claims, and it has %d and 100%% "+
				"(what is prepared for claims that are gone is being removed; if this stays, ration ps on the node shows what is prepared)",
				g.Name(), ErrOverbooked, p.Namespace, p.Name, memory, compute, others+1, g.Capacity())
		}
	}
	return nil
}
