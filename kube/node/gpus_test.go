package node

import (
	"testing"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/limit"
)

// The memory that the driver keeps for itself is not promised to claims.
func TestGPUsWithoutReservedMemory(t *testing.T) {
	gpus := GPUs(&gpu.Driver{Devices: []gpu.Device{{UUID: "GPU-a", Total: 80 * limit.GiB, Reserved: 600 * limit.MiB}}})
	expect.Equal(t, gpus[0].Capacity(), uint64(80*limit.GiB-600*limit.MiB))
}
