//go:build !cgo

package gpu

import (
	"fmt"
	"time"
)

// Driver exists so that the same commands can be built without C, for systems without glibc. Such a
// program cannot load NVML.
type Driver struct {
	Version string
	CUDA    int
	Devices []Device
}

// Open returns ErrNoDriver.
func Open(string) (*Driver, error) {
	return nil, fmt.Errorf("loading libnvidia-ml.so.1: %w: this ration is linked statically and can load no library (install the one for glibc)", ErrNoDriver)
}

// OpenFake returns ErrNoDriver, because the stand-in driver is a library too.
func OpenFake(_, _, _ string) (*Driver, error) { return Open("") }

// Processes returns ErrNoDriver.
func (d *Driver) Processes() ([]Process, error) { return nil, ErrNoDriver }

// Free returns ErrNoDriver.
func (d *Driver) Free(int) (uint64, error) { return 0, ErrNoDriver }

// Samples returns ErrNoSamples.
func (d *Driver) Samples(int, uint64) ([]Sample, error) { return nil, ErrNoSamples }

// Status returns ErrNoDriver.
func (d *Driver) Status(int) (Status, error) { return Status{}, ErrNoDriver }

// Close does nothing.
func (d *Driver) Close() {}

func (d *Driver) isKnown() bool { return true }

// OpenCheckpoint returns ErrNoDriver.
func OpenCheckpoint() error {
	_, err := Open("")
	return err
}

// CallCheckpoint returns ErrNoDriver.
func CallCheckpoint(CheckpointCall, int, time.Duration) error { return ErrNoDriver }

// CheckpointStateOf returns ErrNoDriver.
func CheckpointStateOf(int) (CheckpointState, error) { return 0, ErrNoDriver }
