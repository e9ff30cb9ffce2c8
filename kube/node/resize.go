package node

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
	"ration/kube/claim"
	"ration/kube/slices"
	"ration/machine"
)

// Errors of Resize.
var (
	// ErrNotPrepared is returned for a claim that is not prepared here.
	ErrNotPrepared = errors.New("the claim is not prepared on this node")
	// ErrHolds is returned if the job still holds more than its new limit. The limit is in force, and the memory stays
	// booked: the job keeps what it holds. Resize has to be called again.
	ErrHolds = errors.New("the job still holds more than its new limit")
)

// Resize changes the memory limit of a prepared claim on each of its devices, while its programs run; 0 is what was
// allocated.
//
// What a claim has beyond its allocation is booked in its record, since the scheduler does not count it. The limit of a
// job never exceeds what is booked for it: a raised limit is booked before it is set, and a lowered one is set before
// the booking ends (PROTOCOL.md).
func (n *Node) Resize(uid string, memory uint64) (changed bool, err error) {
	if err := claim.CheckUID(uid); err != nil {
		return false, err
	}
	l, err := n.lock(uid)
	if err != nil {
		return false, err
	}
	defer l.unlock()
	r, err := n.read(uid)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrRecord) || err == nil && r.Created == nil:
		return false, ErrNotPrepared
	case err != nil:
		return false, err
	}
	limits, extra, err := resized(r.Plan, memory)
	if err != nil || limits == nil {
		return false, err
	}
	booked, err := n.bookExtra(l, r, extra)
	if err != nil {
		return false, err
	}
	set, err := n.setLimits(r, limits)
	if err != nil {
		return false, err
	}
	n.reached(PointResized)
	if maps.Equal(r.Extra, extra) {
		return booked || set, nil
	}
	if err := checkHeld(r, limits); err != nil {
		return booked || set, err
	}
	r.Extra = extra
	return true, n.write(r)
}

// resized returns a claim's new limits by the index of the device, and how much they are beyond the allocation by the
// device's name. The limits are nil for a claim that cannot be resized, and need not be.
func resized(p claim.Plan, memory uint64) (limits map[int]uint64, extra map[string]uint64, err error) {
	switch {
	case len(p.Rations) == 1:
	case memory == 0:
		return nil, nil, nil
	default:
		return nil, nil, fmt.Errorf("claim %s/%s has %d rations (sharing: %s), and only a claim with one can be resized", p.Namespace, p.Name, len(p.Rations), claim.ShareByRequest)
	}
	limits, extra = map[int]uint64{}, map[string]uint64{}
	for _, s := range p.Rations[0].Shares {
		want := s.Memory
		if memory != 0 {
			want = memory / slices.Step * slices.Step
		}
		if least := min(s.Memory, slices.LeastMemory); want < least {
			return nil, nil, fmt.Errorf("%d bytes are too few for claim %s/%s (use at least %d)", memory, p.Namespace, p.Name, least)
		}
		limits[s.Index] = want
		if want > s.Memory {
			extra[s.Device] = want - s.Memory
		}
	}
	return limits, extra, nil
}

// bookExtra books what is beyond the allocation, if it fits beside the other claims. It never books less than before.
func (n *Node) bookExtra(l *claimLock, r *Record, extra map[string]uint64) (changed bool, err error) {
	most := map[string]uint64{}
	maps.Copy(most, r.Extra)
	for device, bytes := range extra {
		if bytes > most[device] {
			most[device], changed = bytes, true
		}
	}
	if !changed {
		return false, nil
	}
	release, err := l.reserve()
	if err != nil {
		return false, err
	}
	defer release()
	records, err := n.Records()
	if err == nil {
		err = n.checkRoom(r.Plan, most, without(records, r.Plan.UID))
	}
	if err != nil {
		return false, err
	}
	r.Extra = most
	if err := n.write(r); err != nil {
		return false, err
	}
	n.reached(PointBooked)
	return true, nil
}

// setLimits sets the limits of a claim's job, as ration limit does, unless they are in force.
func (n *Node) setLimits(r *Record, limits map[int]uint64) (changed bool, err error) {
	for i, ration := range r.Plan.Rations {
		page, err := region.OpenOperatorLimits(filepath.Join(job.Folder(), jobName(r.Plan, i), job.RegionName))
		if err != nil {
			return changed, fmt.Errorf("changing the limit of claim %s/%s: %w", r.Plan.Namespace, r.Plan.Name, err)
		}
		for _, s := range ration.Shares {
			want := abi.MakeLimit(limits[s.Index])
			if has, err := page.Limit(s.Index); err == nil && has == want {
				continue
			}
			if err := page.SetLimit(s.Index, want); err != nil {
				return changed, fmt.Errorf("changing the limit of claim %s/%s: %w", r.Plan.Namespace, r.Plan.Name, err)
			}
			changed = true
		}
	}
	if changed {
		job.QueueChanged() // a lower limit makes room
	}
	return changed, nil
}

// checkHeld returns ErrHolds if the job holds more of a device than its limit.
func checkHeld(r *Record, limits map[int]uint64) error {
	for _, name := range r.Jobs() {
		j, err := machine.ReadJob(name)
		if err != nil {
			return fmt.Errorf("reading what claim %s/%s holds: %w", r.Plan.Namespace, r.Plan.Name, err)
		}
		dead := ofDead(&j)
		for _, d := range j.Devices {
			used := d.Used - min(d.Used, dead[d.Device])
			if want, ok := limits[d.Device]; ok && used > want {
				return fmt.Errorf("%w: %d bytes of device %d, with a limit of %d", ErrHolds, used, d.Device, want)
			}
		}
	}
	return nil
}

// ofDead returns what is still counted for processes of a job that have ended, by device: the next request of the job
// gives it back. What they had exported may be in use.
func ofDead(j *machine.Job) map[int]uint64 {
	out := map[int]uint64{}
	for _, p := range j.Processes {
		if p.State != machine.Dead || p.Lent {
			continue
		}
		for _, h := range p.Holdings {
			out[h.Device] += h.Total
		}
	}
	return out
}

// Extra returns how much claims have of each device beyond their allocations, by the device's name. The scheduler must
// not hand it out.
func (n *Node) Extra() (map[string]uint64, error) {
	records, err := n.Records()
	out := map[string]uint64{}
	for _, r := range records {
		for device, bytes := range r.Extra {
			out[device] += bytes
		}
	}
	return out, err
}
