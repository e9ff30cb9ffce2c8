// Package hami turns manifests that ask for GPUs as HAMi has it (nvidia.com/gpu, gpumem, gpucores,
// gpumem-percentage) into ones that claim a ration by Dynamic Resource Allocation.
//
// It changes what it understands and leaves the rest of a manifest as it is, comments included. What
// it does not understand of HAMi it leaves in place, and says so.
package hami

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"ration/internal/limit"
)

// Options are what a manifest does not say.
type Options struct {
	Class        string     // the device class; empty: gpu.ration
	DeviceMemory limit.Size // of each GPU, for percentages; 0: not known
}

// driver is the DRA driver, and its device class.
const driver = "gpu.ration"

// Note is what a person has to know of a manifest that was converted.
type Note struct {
	Where string // Deployment train, container main
	Text  string
	Left  bool // it was not converted, and is as it was
}

func (n Note) String() string { return n.Where + ": " + n.Text }

// Convert returns the manifests of a stream of YAML documents, with a ResourceClaimTemplate before each
// that needs one.
func Convert(in []byte, o Options) (out []byte, notes []Note, err error) {
	if o.Class == "" {
		o.Class = driver
	}
	decoder := yaml.NewDecoder(bytes.NewReader(in))
	var all []*yaml.Node
	for i := 1; ; i++ {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("reading document %d: %w", i, err)
		}
		c := converter{options: o}
		if document.Kind == yaml.DocumentNode && len(document.Content) == 1 {
			c.object(document.Content[0])
		}
		all, notes = append(append(all, c.templates...), &document), append(notes, c.notes...)
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	for _, document := range all {
		if err := encoder.Encode(document); err != nil {
			return nil, nil, fmt.Errorf("writing the manifests: %w", err)
		}
	}
	if err := encoder.Close(); err != nil {
		return nil, nil, fmt.Errorf("writing the manifests: %w", err)
	}
	return text.Bytes(), notes, nil
}

// converter converts one object.
type converter struct {
	options   Options
	where     string // the object
	name      string
	namespace string
	templates []*yaml.Node
	notes     []Note
}

func (c *converter) note(left bool, container, format string, args ...any) {
	where := c.where
	if container != "" {
		where += ", container " + container
	}
	c.notes = append(c.notes, Note{where, fmt.Sprintf(format, args...), left})
}

// object converts an object, or each of a List.
func (c *converter) object(n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		return
	}
	if items := get(n, "items"); strings.HasSuffix(text(get(n, "kind")), "List") && items != nil {
		var out []*yaml.Node
		for _, item := range items.Content {
			own := converter{options: c.options}
			own.object(item)
			for _, t := range own.templates {
				out = append(out, t.Content[0])
			}
			out, c.notes = append(out, item), append(c.notes, own.notes...)
		}
		items.Content = out
		return
	}
	metadata := get(n, "metadata")
	c.name, c.namespace = text(get(metadata, "name")), text(get(metadata, "namespace"))
	if c.name == "" {
		c.name = strings.TrimRight(text(get(metadata, "generateName")), "-")
	}
	c.where = text(get(n, "kind")) + " " + c.name
	c.walk(n)
}

// walk looks for pods at any depth: in a Pod, in the template of a workload, also of kinds that are
// not known here.
func (c *converter) walk(n *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		if spec := get(n, "spec"); spec != nil && get(spec, "containers") != nil && get(spec, "containers").Kind == yaml.SequenceNode {
			c.pod(n, spec)
			return
		}
	}
	for _, child := range n.Content {
		c.walk(child)
	}
}

// pod converts a pod or the template of one.
func (c *converter) pod(pod, spec *yaml.Node) {
	selectors := c.selectors(get(pod, "metadata"))
	type user struct {
		container *yaml.Node
		request   request
	}
	var users []user
	for _, list := range []string{"initContainers", "containers"} {
		containers := get(spec, list)
		if containers == nil {
			continue
		}
		for _, container := range containers.Content {
			if r, ok := c.read(container); ok {
				users = append(users, user{container, r})
			}
		}
	}
	if len(users) == 0 {
		return
	}
	claims := ensure(spec, "resourceClaims", yaml.SequenceNode)
	for _, u := range users {
		claim, template := "gpu", c.name+"-gpu"
		if len(users) > 1 {
			claim, template = "gpu-"+u.request.container, c.name+"-"+u.request.container+"-gpu"
		}
		template = c.unused(template)
		claims.Content = append(claims.Content, mapping("name", scalar(claim), "resourceClaimTemplateName", scalar(template)))
		own := ensure(ensure(u.container, "resources", yaml.MappingNode), "claims", yaml.SequenceNode)
		own.Content = append(own.Content, mapping("name", scalar(claim)))
		c.templates = append(c.templates, c.template(template, u.request, selectors))
	}
	c.podSettings(spec)
}

// unused returns a name that no template of the object has: several kinds of pods may have containers of
// one name.
func (c *converter) unused(name string) string {
	for n, try := 2, name; ; n++ {
		if !slices.ContainsFunc(c.templates, func(t *yaml.Node) bool { return text(get(get(t.Content[0], "metadata"), "name")) == try }) {
			return try
		}
		try = fmt.Sprintf("%s-%d", name, n)
	}
}

// podSettings removes what is for HAMi, or would bring all GPUs into the pod.
func (c *converter) podSettings(spec *yaml.Node) {
	if name := text(get(spec, "schedulerName")); name == "hami-scheduler" {
		remove(spec, "schedulerName")
		c.note(false, "", "schedulerName %s is removed: the scheduler of Kubernetes places the pod", name)
	}
	if name := text(get(spec, "runtimeClassName")); name == "nvidia" {
		remove(spec, "runtimeClassName")
		c.note(false, "", "runtimeClassName nvidia is removed: it gives the pod all GPUs that NVIDIA_VISIBLE_DEVICES of its image names")
	}
}

// selectors returns what HAMi's annotations say of the devices, as expressions.
func (c *converter) selectors(metadata *yaml.Node) (out []string) {
	annotations := get(metadata, "annotations")
	if annotations == nil {
		return nil
	}
	for i := 0; i+1 < len(annotations.Content); {
		key, value := annotations.Content[i].Value, annotations.Content[i+1].Value
		expression, known := selector(key, value)
		switch {
		case expression != "":
			out = append(out, expression)
			annotations.Content = append(annotations.Content[:i], annotations.Content[i+2:]...)
			c.note(false, "", "annotation %s is a selector of the claim now", key)
			continue
		case known || strings.HasPrefix(key, "hami.io/"):
			c.note(true, "", "annotation %s: %s is left, and has no effect", key, value)
		}
		i += 2
	}
	if len(annotations.Content) == 0 {
		remove(metadata, "annotations")
	}
	return out
}

// selector returns HAMi's annotation as an expression; known is true for one that has none.
func selector(key, value string) (expression string, known bool) {
	var values []string
	for part := range strings.SplitSeq(value, ",") {
		if part = strings.TrimSpace(part); part != "" {
			values = append(values, part)
		}
	}
	attribute := `device.attributes["` + driver + `"].`
	join := func(operator, format string) string {
		var terms []string
		for _, v := range values {
			terms = append(terms, fmt.Sprintf(format, v))
		}
		return strings.Join(terms, operator)
	}
	switch {
	case len(values) == 0:
		return "", false
	case key == "nvidia.com/use-gpuuuid":
		return join(" || ", attribute+"uuid == %q"), true
	case key == "nvidia.com/nouse-gpuuuid":
		return join(" && ", attribute+"uuid != %q"), true
	case key == "nvidia.com/use-gputype":
		return join(" || ", attribute+"model.matches(%q)"), true
	case key == "nvidia.com/nouse-gputype":
		return join(" && ", "!"+attribute+"model.matches(%q)"), true
	}
	return "", strings.HasPrefix(key, "nvidia.com/")
}
