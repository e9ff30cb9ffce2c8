package launch

import (
	"errors"
	"fmt"
)

// CDIKind is the kind of the devices of the Container Device Interface, by which a container engine
// (Docker, Podman, containerd, CRI-O) puts a container into a job: the device ration/job=NAME.
const CDIKind = "ration/job"

// ErrCDIName is returned if the job's name is not valid for a CDI device.
var ErrCDIName = errors.New("not a name for a CDI device")

// CDISpec is a CDI spec, with the fields that ration uses.
type CDISpec struct {
	Version string      `json:"cdiVersion"`
	Kind    string      `json:"kind"`
	Devices []CDIDevice `json:"devices"`
}

// CDIDevice is a device of a CDISpec, with its changes to a container.
type CDIDevice struct {
	Name  string `json:"name"`
	Edits struct {
		Env    []string   `json:"env"`
		Mounts []CDIMount `json:"mounts"`
	} `json:"containerEdits"`
}

// CDIMount is a bind mount.
type CDIMount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options"`
}

// CDI returns the spec with which containers join the job.
func (s *Standing) CDI() (CDISpec, error) {
	if last := s.Name[len(s.Name)-1]; last == '.' || last == '_' || last == '-' || s.Name[0] == '_' {
		return CDISpec{}, fmt.Errorf("%s: %w: it begins and ends with a letter or digit (create the job by another name)", s.Name, ErrCDIName)
	}
	d := CDIDevice{Name: s.Name}
	d.Edits.Env = s.Environ
	for _, m := range s.Mappings {
		d.Edits.Mounts = append(d.Edits.Mounts, CDIMount{m.From, m.To, m.Options()})
	}
	// 0.5.0 is the oldest version that allows device names which begin with a digit. Engines read
	// all versions up to the newest that they know.
	return CDISpec{"0.5.0", CDIKind, []CDIDevice{d}}, nil
}

// Options returns the options for mounting the file or folder.
func (m Mapping) Options() []string {
	out := []string{"bind", "nosuid", "nodev"}
	if !m.Programs {
		out = append(out, "noexec")
	}
	if m.Writable {
		return append(out, "rw")
	}
	return append(out, "ro")
}
