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
	for _, dev := range d.CUDADevices() {
		out = append(out, slices.GPU{Index: dev.Index, UUID: dev.UUID, Parent: dev.Parent, Model: dev.Name, Capability: dev.Capability,
			DriverVersion: d.Version, CUDA: d.CUDA, Memory: uint64(dev.Usable()), MIG: dev.MIG})
	}
	return out
}

// devices are the GPUs of a machine at one time.
type devices struct {
	gpus   []slices.GPU
	driver *gpu.Driver
}

// SetDevices replaces the GPUs, when the machine has got others.
func (n *Node) SetDevices(gpus []slices.GPU, driver *gpu.Driver) { n.now.Store(&devices{gpus, driver}) }

// Devices returns the GPUs that there are now.
func (n *Node) Devices() []slices.GPU {
	if now := n.now.Load(); now != nil {
		return now.gpus
	}
	return n.GPUs
}

func (n *Node) driver() *gpu.Driver {
	if now := n.now.Load(); now != nil {
		return now.driver
	}
	return n.Driver
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
