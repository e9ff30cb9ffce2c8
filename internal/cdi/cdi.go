// Package cdi writes specs of the Container Device Interface: how a container engine (Docker,
// Podman, containerd, CRI-O) puts a container into a job.
package cdi

import (
	"errors"
	"fmt"

	"ration/internal/launch"
)

// Version is the oldest version of the interface in which all that is used here is allowed:
// names of devices that begin with a digit are since 0.5.0. Engines read all versions up to the
// one that they know.
const Version = "0.5.0"

// Kind is the kind of the devices: a job is ration/job=NAME.
const Kind = "ration/job"

// ErrName is returned for a job whose name no CDI device can have.
var ErrName = errors.New("not a name for a CDI device")

// Spec is a CDI spec, as far as it is used here.
type Spec struct {
	Version string   `json:"cdiVersion"`
	Kind    string   `json:"kind"`
	Devices []Device `json:"devices"`
}

// Device is one device of a Spec.
type Device struct {
	Name  string `json:"name"`
	Edits Edits  `json:"containerEdits"`
}

// Edits is what is changed in a container that gets the device.
type Edits struct {
	Env    []string `json:"env"`
	Mounts []Mount  `json:"mounts"`
}

// Mount is a bind mount.
type Mount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options"`
}

// For returns the spec for a job.
func For(s *launch.Standing) (Spec, error) {
	if last := s.Name[len(s.Name)-1]; last == '.' || last == '_' || last == '-' || s.Name[0] == '_' {
		return Spec{}, fmt.Errorf("%s: %w: it begins and ends with a letter or digit (create the job by another name)", s.Name, ErrName)
	}
	d := Device{Name: s.Name, Edits: Edits{Env: s.Environ}}
	for _, m := range s.Mappings {
		d.Edits.Mounts = append(d.Edits.Mounts, Mount{m.From, m.To, Options(m)})
	}
	return Spec{Version, Kind, []Device{d}}, nil
}

// Options returns how a file of a job is mounted.
func Options(m launch.Mapping) []string {
	out := []string{"bind", "nosuid", "nodev"}
	if !m.Programs {
		out = append(out, "noexec")
	}
	if m.Writable {
		return append(out, "rw")
	}
	return append(out, "ro")
}
