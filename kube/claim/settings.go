package claim

import (
	"bytes"
	"encoding/json"
	"errors"
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

	// WaitAlloc is for how long a request that does not fit waits until the job has freed enough, as 30s. It is that of
	// a job, like Priority.
	WaitAlloc string `json:"waitAlloc,omitempty"`

	// Settings of ration run that a claim cannot have. They are known here for the message only.
	SleepAfter any `json:"sleepAfter,omitempty"`
	Wake       any `json:"wake,omitempty"`
	Wait       any `json:"wait,omitempty"`
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
	waits      map[string]limit.WaitAlloc
	asked      limit.Priority // the highest that the claim itself asks for, not its class
}

// Why a claim cannot have a setting of ration run.
const (
	noSleep = "a claim cannot sleep: the scheduler keeps its memory reserved while its pod exists, so that nobody else would get it (end the pod, or ask for less memory)"
	noWait  = "a claim cannot wait: its pod is pending until the scheduler finds room (waitAlloc is for requests of a running program)"
)

// readSettings reads the configs for this driver. Those of the class come first, so that those of
// the claim override them. An unknown setting is an error, because it may ask for less.
func readSettings(configs []resourceapi.DeviceAllocationConfiguration) (settings, error) {
	s := settings{caps: map[string]int{}, priorities: map[string]limit.Priority{}, waits: map[string]limit.WaitAlloc{}}
	var single []string // requests that have settings of a job of their own
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim} {
		for _, c := range configs {
			if c.Source != source || c.Opaque == nil || c.Opaque.Driver != slices.Driver {
				continue
			}
			priority, wait, err := s.add(c.Requests, c.Opaque.Parameters.Raw)
			if err != nil {
				return s, fmt.Errorf("config: %w (see docs/kubernetes.md for what there is)", err)
			}
			if source != resourceapi.AllocationConfigSourceClaim {
				continue
			}
			if priority != 0 || wait != 0 {
				single = append(single, c.Requests...)
			}
			if priority != 0 && (s.asked == 0 || priority.Above(s.asked)) {
				s.asked = priority
			}
		}
	}
	if len(single) > 0 && !s.perRequest {
		return s, fmt.Errorf("config: priority and waitAlloc are for the whole claim, and these are for requests %s (leave them out, or use sharing: %s)",
			strings.Join(single, ", "), ShareByRequest)
	}
	return s, nil
}

// add adds a config, and returns its settings of a job; 0 for those that it does not have.
func (s *settings) add(requests []string, parameters []byte) (priority limit.Priority, wait limit.WaitAlloc, err error) {
	var c Config
	d := json.NewDecoder(bytes.NewReader(parameters))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return 0, 0, err
	}
	if err := c.check(requests); err != nil {
		return 0, 0, err
	}
	if priority, err = limit.ParsePriority("priority", c.Priority); err != nil {
		return 0, 0, err
	}
	if priority != 0 && priority.String() != c.Priority { // which admission would not know
		return 0, 0, fmt.Errorf("priority %q: write %s", c.Priority, priority)
	}
	if c.WaitAlloc != "" {
		if wait, err = limit.ParseWaitAlloc("waitAlloc", c.WaitAlloc); err != nil {
			return 0, 0, err
		}
	}
	if c.Sharing != "" {
		s.perRequest = c.Sharing == ShareByRequest
	}
	setFor(s.caps, requests, c.ComputeMax)
	setFor(s.priorities, requests, priority)
	setFor(s.waits, requests, wait)
	return priority, wait, nil
}

// check checks what needs no parsing.
func (c *Config) check(requests []string) error {
	switch {
	case c.SleepAfter != nil || c.Wake != nil:
		return errors.New(noSleep)
	case c.Wait != nil:
		return errors.New(noWait)
	case c.APIVersion != ConfigVersion || c.Kind != ConfigKind:
		return fmt.Errorf("%s %s is not %s %s", c.APIVersion, c.Kind, ConfigVersion, ConfigKind)
	case c.ComputeMax < 0 || c.ComputeMax > 100:
		return fmt.Errorf("computeMax %d is not from 1 to 100", c.ComputeMax)
	case c.Sharing != "" && c.Sharing != ShareByClaim && c.Sharing != ShareByRequest:
		return fmt.Errorf("sharing %q is neither %s nor %s", c.Sharing, ShareByClaim, ShareByRequest)
	case c.Sharing != "" && len(requests) > 0:
		return fmt.Errorf("sharing is for the whole claim, and this config is for requests %s", strings.Join(requests, ", "))
	}
	return nil
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
