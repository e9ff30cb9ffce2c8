package policy

import (
	"context"
	"sync/atomic"
	"time"

	"ration/internal/gpu"
	"ration/internal/launch"
	"ration/internal/limit"
)

// devicesEvery is how often a service asks the driver which devices answer.
const devicesEvery = 10 * time.Second

// silent are the devices that did not answer when the service of this process last asked, and why. It is nil in other
// processes.
var silent atomic.Pointer[map[int]error]

// watchDevices asks the driver which devices answer, until the context ends. No request waits for it: a driver that hangs
// must not keep users from the service.
func watchDevices(ctx context.Context) {
	tick := time.NewTicker(devicesEvery)
	defer tick.Stop()
	var driver *gpu.Driver // kept open: to start NVML takes long
	for {
		if driver == nil {
			driver, _ = gpu.Open("")
		}
		if driver != nil {
			found := silentOf(driver)
			silent.Store(&found)
			if len(found) > 0 {
				driver.Close() // only a new start finds a device that was reset
				driver = nil
			}
		}
		select {
		case <-ctx.Done():
			if driver != nil {
				driver.Close()
			}
			return
		case <-tick.C:
		}
	}
}

// silentOf returns the devices that do not answer.
func silentOf(driver interface {
	Describe() []gpu.Device
	Status(device int) (gpu.Status, error)
}) map[int]error {
	out := map[int]error{}
	for _, d := range driver.Describe() {
		if _, err := driver.Status(d.Index); err != nil {
			out[d.Index] = err
		}
	}
	return out
}

// devices returns the machine's devices. In a service it is the cached list, with those that do not answer.
func devices() (*gpu.Driver, error) {
	known := silent.Load()
	if known == nil {
		return gpu.Open("")
	}
	driver, err := launch.KnownDevices()
	if err == nil {
		for i := range driver.Devices {
			if failed := (*known)[i]; failed != nil {
				driver.Devices[i].Failed, driver.Devices[i].Total = failed, 0
			}
		}
	}
	return driver, err
}

// totals returns the sizes of the devices; nil if they are not known.
func (r *rations) totals() []limit.Size {
	if r.driver == nil {
		return nil
	}
	return r.driver.Totals()
}

// usable returns how much of each device programs can have: what a percentage is of.
func (r *rations) usable() (out []limit.Size) {
	if r.driver != nil {
		for _, d := range r.driver.Devices {
			out = append(out, d.Usable())
		}
	}
	return out
}
