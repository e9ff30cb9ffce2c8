package policy

import (
	"errors"
	"testing"

	"ration/check/expect"
	"ration/internal/gpu"
)

type oneLost struct{ lost error }

func (o oneLost) Describe() []gpu.Device { return []gpu.Device{{Index: 0}, {Index: 1}, {Index: 2}} }

func (o oneLost) Status(device int) (gpu.Status, error) {
	if device == 1 {
		return gpu.Status{}, o.lost
	}
	return gpu.Status{}, nil
}

func TestSilentOf(t *testing.T) {
	lost := errors.New("lost")
	got := silentOf(oneLost{lost})
	expect.True(t, len(got) == 1 && got[1] == lost, got)
}
