package hami

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"ration/internal/limit"
)

// HAMi's resources.
const (
	resourceGPU     = "nvidia.com/gpu"
	resourceMemory  = "nvidia.com/gpumem" // MiB of each GPU
	resourcePercent = "nvidia.com/gpumem-percentage"
	resourceCores   = "nvidia.com/gpucores" // per cent of each GPU
	resourcePrefix  = "nvidia.com/"
)

var resources = []string{resourceGPU, resourceMemory, resourcePercent, resourceCores}

// maxMiB is more memory than a GPU has.
const maxMiB = 1 << 24

// envPolicy decides what HAMi's gpucores mean: by default a share, with force a cap.
const envPolicy = limit.EnvPolicy

// request has the resources that a container requests.
type request struct {
	container  string
	count      int
	memory     limit.Size // of each; 0 for all of it
	compute    int        // share of each
	computeMax int        // cap on each
}

// read reads a container's HAMi resources, and removes those that it understands. Limits override
// requests; Kubernetes requires both to be equal. ok is false if there is nothing to convert.
func (o *object) read(container *yaml.Node) (r request, ok bool) {
	r.container = text(get(container, "name"))
	own := get(container, "resources")
	values := map[string]*yaml.Node{}
	for _, list := range []string{"requests", "limits"} {
		m := get(own, list)
		if m == nil {
			continue
		}
		for i := 0; i+1 < len(m.Content) && m.Kind == yaml.MappingNode; i += 2 {
			if key := m.Content[i].Value; strings.HasPrefix(key, resourcePrefix) {
				values[key] = m.Content[i+1]
			}
		}
	}
	if len(values) == 0 {
		return r, false
	}
	numbers := map[string]*number{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values[key]
		if !slices.Contains(resources, key) {
			o.fail(value, r.container, "%s: %s has no counterpart (remove it)", key, value.Value)
			continue
		}
		n, err := strconv.Atoi(value.Value)
		if err != nil || n < 0 {
			o.fail(value, r.container, "%s: %q is not a whole number", key, value.Value)
			continue
		}
		numbers[key] = &number{value, n}
	}
	if len(numbers) == 0 {
		return r, false
	}
	if !o.amounts(&r, numbers) {
		return r, false
	}
	for _, list := range []string{"requests", "limits"} {
		m := get(own, list)
		for _, key := range resources {
			remove(m, key)
		}
		if m != nil && len(m.Content) == 0 {
			remove(own, list)
		}
	}
	o.environment(container, &r)
	return r, r.count > 0
}

// number is the value of a resource and its position in the manifest.
type number struct {
	at    *yaml.Node
	value int
}

// amounts fills in a request from HAMi's numbers. It returns false if they are invalid.
func (o *object) amounts(r *request, numbers map[string]*number) bool {
	value := func(name string) int {
		if n := numbers[name]; n != nil {
			return n.value
		}
		return 0
	}
	r.count = 1 // HAMi's default if only memory or cores are requested
	if n := numbers[resourceGPU]; n != nil {
		r.count = n.value
		if n.value == 0 {
			o.note(n.at, r.container, "%s: 0 is removed: no GPU", resourceGPU)
			return true
		}
	}
	percent := numbers[resourcePercent]
	switch memory := value(resourceMemory); {
	case memory > maxMiB:
		o.fail(numbers[resourceMemory].at, r.container, "%s: %d MiB is more than a GPU has", resourceMemory, memory)
		return false
	case memory > 0:
		r.memory = limit.Size(memory) * limit.MiB
		if percent != nil {
			o.note(percent.at, r.container, "%s is removed: %s counts before it", resourcePercent, resourceMemory)
		}
	case percent == nil, percent.value == 0, percent.value == 100:
	case percent.value > 100:
		o.fail(percent.at, r.container, "%s: %d is more than all", resourcePercent, percent.value)
		return false
	case o.DeviceMemory == 0:
		o.fail(percent.at, r.container, "%s: %d is of a GPU whose size is not known (say --device-memory 80Gi, for instance)", resourcePercent, percent.value)
		return false
	default:
		r.memory = o.DeviceMemory * limit.Size(percent.value) / 100 / limit.MiB * limit.MiB
	}
	if r.compute = value(resourceCores); r.compute > 100 {
		o.fail(numbers[resourceCores].at, r.container, "%s: %d is more than 100", resourceCores, r.compute)
		return false
	}
	return true
}

// environment applies HAMi's policy for cores, and adds notes about variables whose meaning
// changes.
func (o *object) environment(container *yaml.Node, r *request) {
	env := get(container, "env")
	if env == nil {
		return
	}
	for i := 0; i < len(env.Content); {
		at, name, value := env.Content[i], text(get(env.Content[i], "name")), text(get(env.Content[i], "value"))
		switch {
		case name == envPolicy:
			switch strings.ToLower(value) {
			case "force":
				r.computeMax, r.compute = r.compute, 0
			case "disable":
				r.compute = 0
			}
			env.Content = append(env.Content[:i], env.Content[i+1:]...)
			o.note(at, r.container, "%s=%s is in the claim now", name, value)
			continue
		case slices.Contains(withoutEffect, name):
			o.note(at, r.container, "%s=%s is left, and has no effect", name, value)
		case name == "NVIDIA_VISIBLE_DEVICES":
			o.note(at, r.container, "%s=%s is left: with NVIDIA's runtime as the default one it brings in GPUs beside the claim (remove it)", name, value)
		}
		i++
	}
	if len(env.Content) == 0 {
		remove(container, "env")
	}
}

// withoutEffect are variables of HAMi-core that mean nothing in a claim.
var withoutEffect = []string{"CUDA_DISABLE_CONTROL", "CUDA_OVERSUBSCRIBE", "CUDA_TASK_PRIORITY", "ACTIVE_OOM_KILLER",
	"RECORD_KERNEL_INTERVAL", "CUDA_REDIRECT", "CONTAINER_VGPU_MOUNT"}

// template returns a ResourceClaimTemplate for a request.
func (o *object) template(name string, r request, selectors []string) *yaml.Node {
	exactly := mapping("deviceClassName", scalar(o.Class))
	if r.count > 1 {
		add(exactly, "allocationMode", scalar("ExactCount"), "count", integer(r.count))
	}
	if len(selectors) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, s := range selectors {
			list.Content = append(list.Content, mapping("cel", mapping("expression", scalar(s))))
		}
		add(exactly, "selectors", list)
	}
	amounts := mapping()
	if r.memory > 0 {
		add(amounts, "memory", scalar(quantity(r.memory)))
	}
	if r.compute > 0 {
		add(amounts, "compute", &yaml.Node{Kind: yaml.ScalarNode, Style: yaml.DoubleQuotedStyle, Value: strconv.Itoa(r.compute)})
	}
	if len(amounts.Content) > 0 {
		add(exactly, "capacity", mapping("requests", amounts))
	}
	devices := mapping("requests", sequence(mapping("name", scalar("gpu"), "exactly", exactly)))
	if r.count > 1 {
		add(devices, "constraints", sequence(mapping("requests", sequence(scalar("gpu")), "distinctAttribute", scalar(driver+"/uuid"))))
	}
	if r.computeMax > 0 {
		parameters := mapping("apiVersion", scalar(driver+"/v1"), "kind", scalar("RationConfig"), "computeMax", integer(r.computeMax))
		add(devices, "config", sequence(mapping("opaque", mapping("driver", scalar(driver), "parameters", parameters))))
	}
	metadata := mapping("name", scalar(name))
	if o.namespace != "" {
		add(metadata, "namespace", scalar(o.namespace))
	}
	return &yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{mapping("apiVersion", scalar("resource.k8s.io/v1"), "kind", scalar("ResourceClaimTemplate"),
		"metadata", metadata, "spec", mapping("spec", mapping("devices", devices)))}}
}

// quantity formats a size for Kubernetes.
func quantity(s limit.Size) string {
	if s%limit.GiB == 0 {
		return fmt.Sprintf("%dGi", uint64(s/limit.GiB))
	}
	return fmt.Sprintf("%dMi", uint64(s/limit.MiB))
}
