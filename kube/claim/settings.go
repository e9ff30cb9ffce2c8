package claim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"ration/kube/slices"
)

// API version and kind of a claim's config for this driver.
const (
	ConfigVersion = slices.Driver + "/v1"
	ConfigKind    = "RationConfig"
)

// Config is the content of `config.opaque.parameters` of a claim or device class.
type Config struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Sharing selects the containers that share a ration. Claim (the default): all containers that
	// use the claim; its requests are devices of one job. Request: each request is a job of its
	// own, for containers that name it (resources.claims[].request).
	Sharing string `json:"sharing,omitempty"`

	// ComputeMax is a cap: the most of a device's time, in per cent, that the requests get.
	ComputeMax int `json:"computeMax,omitempty"`
}

// Values of Config.Sharing.
const (
	ShareByClaim   = "Claim"
	ShareByRequest = "Request"
)

// settings merges all configs of a claim.
type settings struct {
	perRequest bool
	caps       map[string]int // by request; "" means all requests
}

// readSettings reads the configs for this driver. Those of the class come first, so that those of
// the claim override them. An unknown setting is an error, because it may ask for less.
func readSettings(configs []resourceapi.DeviceAllocationConfiguration) (settings, error) {
	s := settings{caps: map[string]int{}}
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim} {
		for _, c := range configs {
			if c.Source != source || c.Opaque == nil || c.Opaque.Driver != slices.Driver {
				continue
			}
			if err := s.add(c.Requests, c.Opaque.Parameters.Raw); err != nil {
				return s, fmt.Errorf("config: %w (see docs/kubernetes.md for what there is)", err)
			}
		}
	}
	return s, nil
}

func (s *settings) add(requests []string, parameters []byte) error {
	var c Config
	d := json.NewDecoder(bytes.NewReader(parameters))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return err
	}
	switch {
	case c.APIVersion != ConfigVersion || c.Kind != ConfigKind:
		return fmt.Errorf("%s %s is not %s %s", c.APIVersion, c.Kind, ConfigVersion, ConfigKind)
	case c.ComputeMax < 0 || c.ComputeMax > 100:
		return fmt.Errorf("computeMax %d is not from 1 to 100", c.ComputeMax)
	case c.Sharing != "" && c.Sharing != ShareByClaim && c.Sharing != ShareByRequest:
		return fmt.Errorf("sharing %q is neither %s nor %s", c.Sharing, ShareByClaim, ShareByRequest)
	case c.Sharing != "" && len(requests) > 0:
		return fmt.Errorf("sharing is for the whole claim, and this config is for requests %s", strings.Join(requests, ", "))
	}
	if c.Sharing != "" {
		s.perRequest = c.Sharing == ShareByRequest
	}
	if c.ComputeMax != 0 {
		if len(requests) == 0 {
			s.caps = map[string]int{"": c.ComputeMax}
		}
		for _, r := range requests {
			s.caps[r] = c.ComputeMax
		}
	}
	return nil
}

// computeMax returns the cap of a request, or of its parent for a subrequest; 0 means no cap.
func (s settings) computeMax(request string) int {
	parent, _, _ := strings.Cut(request, "/")
	for _, name := range []string{request, parent, ""} {
		if limit, ok := s.caps[name]; ok {
			return limit
		}
	}
	return 0
}
