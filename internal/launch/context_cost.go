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

// The first process of a job measures the memory of a context. For that it must start NVML, and may
// create a context that does not fit. A new job gets the sizes that earlier jobs have measured, so
// that only the first job on a machine measures them. They are hints: errors here are ignored.

// maxCostRegions bounds the regions that are read for measured sizes.
const maxCostRegions = 4

// earlierCosts returns the measured sizes in the regions of this user's newest jobs. Call it before
// a job is created, because that removes an ended job of the same name.
func earlierCosts() []region.Costs {
	jobs, err := job.List()
	if err != nil {
		return nil
	}
	type regionFile struct {
		path     string
		modified time.Time
	}
	var files []regionFile
	for _, j := range jobs {
		// What others can write is not taken (ReadCosts), like all regions of root's standing jobs.
		if st, err := os.Lstat(j.Path); err == nil && j.Name != "" && st.Mode()&0o022 == 0 {
			files = append(files, regionFile{j.Path, st.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b regionFile) int {
		return cmp.Or(b.modified.Compare(a.modified), cmp.Compare(a.path, b.path))
	})
	var costs []region.Costs
	for _, f := range files[:min(len(files), maxCostRegions)] {
		if c, err := region.ReadCosts(f.path); err == nil && c != (region.Costs{}) {
			costs = append(costs, c)
		}
	}
	return costs
}

// mergeCosts returns for each device the newest size that was measured for its UUID, whatever its
// number was in that region. Without a driver the UUIDs are unknown here: then each device number
// gets the newest size of that number, and the processes compare the UUID.
func mergeCosts(costs []region.Costs, driver *gpu.Driver) (out region.Costs) {
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
	if driver == nil || hasMIG(driver) {
		return out
	}
	out.Device = [abi.Devices]abi.ContextCost{}
	for _, dev := range driver.Devices {
		words, ok := dev.UUIDWords()
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
