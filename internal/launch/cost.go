package launch

import (
	"cmp"
	"os"
	"slices"
	"time"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/region"
)

// What a context takes is measured by the first process of a job, which has to
// start NVML for it, and makes one that may not fit. A new job is told what earlier
// jobs on the machine found out, so that only the very first pays. All of it is a
// hint: whatever goes wrong here is left at that.

// looks is how many regions are opened for this, at most.
const looks = 4

// remembered is what this user's newest jobs remember. It must be asked for before
// a job is made, since one of the same name is removed then.
func remembered() []region.Costs {
	jobs, err := job.List()
	if err != nil {
		return nil
	}
	type made struct {
		path string
		at   time.Time
	}
	var all []made
	for _, j := range jobs {
		if st, err := os.Lstat(j.Path); err == nil && j.Name != "" {
			all = append(all, made{j.Path, st.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b made) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.path, b.path)) })
	var costs []region.Costs
	for _, m := range all[:min(len(all), looks)] {
		if c, err := region.ReadCosts(m.path); err == nil && c != (region.Costs{}) {
			costs = append(costs, c)
		}
	}
	return costs
}

// inherit picks for each device the newest cost that is its own, wherever it stood.
// A device whose UUID only the processes will know gets what stood at its place, and
// they will see whether it is theirs.
func inherit(costs []region.Costs, driver *gpu.Driver) (out region.Costs) {
	for _, c := range slices.Backward(costs) {
		for d, cost := range c.Device {
			if cost != 0 {
				out.Device[d] = cost
			}
		}
		if c.Names != 0 {
			out.Names = c.Names
		}
	}
	if driver == nil || divided(driver) {
		return out
	}
	out.Device = [abi.Devices]abi.ContextCost{}
	for _, dev := range driver.Devices {
		words, ok := dev.Words()
		if !ok || uint(dev.Index) >= abi.Devices {
			continue
		}
		for _, c := range slices.Backward(costs) {
			for _, cost := range c.Device {
				if cost.Of(words) != 0 {
					out.Device[dev.Index] = cost
				}
			}
		}
	}
	return out
}
