package claim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"ration/internal/limit"
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

	// Priority says which jobs come first on a device: high, normal or low. It is that of a job: for
	// some requests only, it needs Sharing: Request.
	Priority string `json:"priority,omitempty"`
}

// Values of Config.Sharing.
const (
	ShareByClaim   = "Claim"
	ShareByRequest = "Request"
)

// settings merges all configs of a claim.
type settings struct {
	perRequest bool
	caps       map[string]int            // by request; "" means all requests
	priorities map[string]limit.Priority // likewise
	asked      limit.Priority            // the highest that the claim itself asks for, not its class
}

// readSettings reads the configs for this driver. Those of the class come first, so that those of
// the claim override them. An unknown setting is an error, because it may ask for less.
func readSettings(configs []resourceapi.DeviceAllocationConfiguration) (settings, error) {
	s := settings{caps: map[string]int{}, priorities: map[string]limit.Priority{}}
	var single []string // requests that have a priority of their own
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim} {
		for _, c := range configs {
			if c.Source != source || c.Opaque == nil || c.Opaque.Driver != slices.Driver {
				continue
			}
			priority, err := s.add(c.Requests, c.Opaque.Parameters.Raw)
			if err != nil {
				return s, fmt.Errorf("config: %w (see docs/kubernetes.md for what there is)", err)
			}
			if priority != 0 && source == resourceapi.AllocationConfigSourceClaim {
				single = append(single, c.Requests...)
				if s.asked == 0 || priority.Above(s.asked) {
					s.asked = priority
				}
			}
		}
	}
	if len(single) > 0 && !s.perRequest {
		return s, fmt.Errorf("config: a priority is for the whole claim, and this one is for requests %s (leave them out, or use sharing: %s)",
			strings.Join(single, ", "), ShareByRequest)
	}
	return s, nil
}

// add adds a config, and returns its priority; 0 if it has none.
func (s *settings) add(requests []string, parameters []byte) (priority limit.Priority, err error) {
	var c Config
	d := json.NewDecoder(bytes.NewReader(parameters))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return 0, err
	}
	if priority, err = limit.ParsePriority("priority", c.Priority); err != nil {
		return 0, err
	}
	switch {
	case priority != 0 && priority.String() != c.Priority: // which admission would not know
		return 0, fmt.Errorf("priority %q: write %s", c.Priority, priority)
	case c.APIVersion != ConfigVersion || c.Kind != ConfigKind:
		return 0, fmt.Errorf("%s %s is not %s %s", c.APIVersion, c.Kind, ConfigVersion, ConfigKind)
	case c.ComputeMax < 0 || c.ComputeMax > 100:
		return 0, fmt.Errorf("computeMax %d is not from 1 to 100", c.ComputeMax)
	case c.Sharing != "" && c.Sharing != ShareByClaim && c.Sharing != ShareByRequest:
		return 0, fmt.Errorf("sharing %q is neither %s nor %s", c.Sharing, ShareByClaim, ShareByRequest)
	case c.Sharing != "" && len(requests) > 0:
		return 0, fmt.Errorf("sharing is for the whole claim, and this config is for requests %s", strings.Join(requests, ", "))
	}
	if c.Sharing != "" {
		s.perRequest = c.Sharing == ShareByRequest
	}
	setFor(s.caps, requests, c.ComputeMax)
	setFor(s.priorities, requests, priority)
	return priority, nil
}

// setFor sets a value for requests, or for all if there are none. The zero value sets nothing.
func setFor[T comparable](values map[string]T, requests []string, value T) {
	var none T
	if value == none {
		return
	}
	if len(requests) == 0 {
		clear(values)
		requests = []string{""}
	}
	for _, r := range requests {
		values[r] = value
	}
}

// valueFor returns the value of a request, or of its parent for a subrequest; zero if there is none.
func valueFor[T any](values map[string]T, request string) (value T) {
	parent, _, _ := strings.Cut(request, "/")
	for _, name := range []string{request, parent, ""} {
		if value, ok := values[name]; ok {
			return value
		}
	}
	return value
}
