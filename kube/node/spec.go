package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"ration/internal/launch"
	"ration/internal/safepath"
	"ration/kube/claim"
	"ration/kube/slices"
)

// Kind is the kind of the CDI devices: a claim's is gpu.ration/claim=UID.
const Kind = slices.Driver + "/claim"

const (
	specPrefix = slices.Driver + "-claim-"
	specSuffix = ".json"
)

func (n *Node) specFile(uid string) string { return filepath.Join(n.CDI, specPrefix+uid+specSuffix) }

// writeSpec writes the CDI spec of a record. It keeps an existing spec if every file that the spec
// names exists. So after an upgrade, restarted containers keep the library that their job was made
// with.
func (n *Node) writeSpec(r *Record, hardware []specs.ContainerEdits) error {
	spec, err := n.spec(r.Plan, hardware)
	if err != nil {
		return err
	}
	if r.Created != nil && n.usable(r, spec) {
		return nil
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.CDI, 0o755); err != nil {
		return fmt.Errorf("making the folder of CDI specs: %w", err)
	}
	if err := safepath.Replace(n.specFile(r.Plan.UID), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the CDI spec of claim %s/%s: %w", r.Plan.Namespace, r.Plan.Name, err)
	}
	return nil
}

// usable reports whether the existing spec can be used for the same devices and jobs: it may differ
// from the new one only in the library, and every file that it names must exist.
func (n *Node) usable(r *Record, want specs.Spec) bool {
	text, err := os.ReadFile(n.specFile(r.Plan.UID))
	var have specs.Spec
	if err != nil || json.Unmarshal(text, &have) != nil || len(have.Devices) != len(want.Devices) {
		return false
	}
	for i, d := range have.Devices {
		own, new := d.ContainerEdits.Mounts, want.Devices[i].ContainerEdits.Mounts
		if d.Name != want.Devices[i].Name || len(own) != len(new) {
			return false
		}
		for m := range own {
			library := strings.HasPrefix(own[m].ContainerPath, launch.LibraryFolder+"/")
			if own[m].ContainerPath != new[m].ContainerPath || !library && own[m].HostPath != new[m].HostPath {
				return false
			}
			if _, err := os.Lstat(own[m].HostPath); err != nil && strings.HasPrefix(own[m].ContainerPath, "/run/ration") {
				return false
			}
		}
	}
	return true
}

// hardware returns the edits for the GPUs of each ration of a claim.
func (n *Node) hardware(p claim.Plan) ([]specs.ContainerEdits, error) {
	out := make([]specs.ContainerEdits, len(p.Rations))
	for i, ration := range p.Rations {
		if n.Hardware == nil {
			continue
		}
		var uuids []string
		for _, s := range ration.Shares {
			uuids = append(uuids, s.UUID)
		}
		var err error
		if out[i], err = n.Hardware(uuids); err != nil {
			return nil, err
		}
		if err := checkHardware(out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// spec returns the CDI spec of a claim: one device for each of its rations, with the job and the GPUs.
func (n *Node) spec(p claim.Plan, hardware []specs.ContainerEdits) (specs.Spec, error) {
	out := specs.Spec{Kind: Kind}
	for i, edits := range hardware {
		s, err := launch.FindStanding(jobName(p, i))
		if err != nil {
			return out, err
		}
		// The environment is not needed, because files at the well-known path override it, and one
		// container may have two claims. Only the stand-in driver is found through the environment,
		// and it is the same for all claims.
		for _, entry := range s.Environ {
			if strings.HasPrefix(entry, "FAKEGPU_") || strings.HasPrefix(entry, "LD_LIBRARY_PATH=") {
				edits.Env = append(edits.Env, entry)
			}
		}
		for _, m := range s.Mappings {
			edits.Mounts = append(edits.Mounts, &specs.Mount{HostPath: m.From, ContainerPath: m.To, Options: m.Options()})
		}
		out.Devices = append(out.Devices, specs.Device{Name: deviceName(p, i), ContainerEdits: edits})
	}
	version, err := specs.MinimumRequiredVersion(&out) // engines read all versions up to the newest that they know
	if err != nil {
		return out, fmt.Errorf("finding the version of the CDI spec: %w", err)
	}
	out.Version = version
	return out, nil
}

// checkHardware refuses mounts of the driver that would override the job's own.
func checkHardware(edits specs.ContainerEdits) error {
	for _, m := range edits.Mounts {
		if m.ContainerPath == launch.PreloadFile || m.ContainerPath == "/etc" || strings.HasPrefix(m.ContainerPath+"/", "/run/ration/") {
			return fmt.Errorf("the driver's files include %s, where the job has to be (is the driver root right?)", m.ContainerPath)
		}
	}
	return nil
}
