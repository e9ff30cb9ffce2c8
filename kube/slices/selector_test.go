package slices

import (
	"cmp"
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"ration/check/expect"
)

// BenchmarkSelector shows what the class's selector costs the scheduler: its own allocator tries a claim on 100 nodes
// of 8 GPUs, or more where the name says so, of which none has room, so that it looks at each device. It reports the processor's time for a node.
func BenchmarkSelector(b *testing.B) {
	const driver = `device.driver == "` + Driver + `"`
	for name, tt := range map[string]struct {
		selectors []string
		bare      bool // devices without attributes
		nodes     int  // 0 for 100
	}{
		"driver":                     {selectors: []string{driver}},
		"driver, without attributes": {selectors: []string{driver}, bare: true},
		"true":                       {selectors: []string{"true"}},
		"none":                       {},
		"driver, 1000 nodes":         {selectors: []string{driver}, nodes: 1000},
		"driver, 5000 nodes":         {selectors: []string{driver}, nodes: 5000},
		"driver and model":           {selectors: []string{driver, `device.attributes["` + Driver + `"].model == "NVIDIA H200"`}},
	} {
		b.Run(name, func(b *testing.B) {
			s := newScheduler(b, Options{}, cmp.Or(tt.nodes, 100), 8, 80*gib)
			class := s.classes[Driver]
			class.Spec.Selectors = nil
			for _, expression := range tt.selectors {
				class.Spec.Selectors = append(class.Spec.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
			}
			for _, slice := range s.slices {
				for i := range slice.Spec.Devices {
					if tt.bare {
						slice.Spec.Devices[i].Attributes = nil
					}
				}
			}
			claim := request("81Gi", "", 1)
			a, err := structured.NewAllocator(context.Background(), structured.Features{ConsumableCapacity: true}, s.state, s.classes, s.slices, s.cache)
			expect.OK(b, err)
			before, tries := processorTime(b), 0
			for b.Loop() {
				for _, node := range s.nodes {
					found, err := a.Allocate(context.Background(), node, []*resourceapi.ResourceClaim{claim})
					expect.Must(b, err == nil && len(found) == 0, found, err)
					tries++
				}
			}
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(tries), "processor-us/node")
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	var use unix.Rusage
	expect.OK(b, unix.Getrusage(unix.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
