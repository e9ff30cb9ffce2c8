package node

import (
	"fmt"
	"os"

	"ration/internal/embedded"
	"ration/internal/gpu"
	"ration/kube/slices"
)

// GPUs returns the devices of a driver in the form in which they are published.
func GPUs(d *gpu.Driver) (out []slices.GPU) {
	for _, dev := range d.Devices {
		out = append(out, slices.GPU{Index: dev.Index, UUID: dev.UUID, Model: dev.Name, Capability: dev.Capability,
			DriverVersion: d.Version, CUDA: d.CUDA, Memory: uint64(dev.Usable()), MIG: dev.MIG})
	}
	return out
}

// FakeGPUs returns the devices of a stand-in machine, such as h200x2. Each job has such a machine
// of its own, with the same UUIDs.
func FakeGPUs(machine string) ([]slices.GPU, error) {
	folder, err := embedded.FakeGPU.Unpack()
	if err != nil {
		return nil, err
	}
	state, err := os.MkdirTemp("", "ration-fake-gpu-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the stand-in machine: %w", err)
	}
	defer os.RemoveAll(state)
	d, err := gpu.OpenFake(folder, machine, state)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return GPUs(d), nil
}
