// Package hami converts manifests that request GPUs with HAMi's resources (nvidia.com/gpu, gpumem,
// gpucores, gpumem-percentage) into manifests that claim a ration with Dynamic Resource Allocation.
//
// It keeps all other parts of a manifest, including comments. If it cannot convert a part of an
// object, it keeps the whole object, because neither scheduler would place a half-converted pod.
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

// Options has facts that are not in a manifest.
type Options struct {
	Class        string     // device class; empty for gpu.ration
	DeviceMemory limit.Size // of each GPU, for percentages; 0 if unknown
}

// driver is the DRA driver, and its device class.
const driver = "gpu.ration"

// Note is a message about a converted manifest.
type Note struct {
	Line   int    // in the input
	Where  string // Deployment train, container main
	Text   string
	Failed bool // the object was not converted
}

func (n Note) String() string { return n.Where + ": " + n.Text }

// Converter converts manifests that are applied together.
type Converter struct {
	Options
	names map[string]bool // names of all templates, with their namespaces
}

// Convert converts a stream of YAML documents. It puts a ResourceClaimTemplate before each object
// that needs one.
func (v *Converter) Convert(in []byte) (out []byte, notes []Note, err error) {
	documents, err := read(in)
	if err != nil {
		return nil, nil, err
	}
	if v.Class == "" {
		v.Class = driver
	}
	if v.names == nil {
		v.names = map[string]bool{}
	}
	for _, d := range documents {
		v.know(d.Content[0])
	}
	var all []*yaml.Node
	for _, d := range documents {
		o := object{Converter: v}
		d.Content[0] = o.convert(d.Content[0])
		all, notes = append(append(all, o.templates...), d), append(notes, o.notes...)
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

// read returns the documents of a stream that are not empty.
func read(in []byte) (out []*yaml.Node, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(in))
	for i := 1; ; i++ {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading document %d: %w", i, err)
		}
		if document.Kind == yaml.DocumentNode && len(document.Content) == 1 {
			out = append(out, &document)
		}
	}
}

// items returns the objects of a List, or nil for another object.
func items(n *yaml.Node) *yaml.Node {
	if list := get(n, "items"); strings.HasSuffix(text(get(n, "kind")), "List") && list != nil && list.Kind == yaml.SequenceNode {
		return list
	}
	return nil
}

// know records the names of existing templates.
func (v *Converter) know(n *yaml.Node) {
	if list := items(n); list != nil {
		for _, item := range list.Content {
			v.know(item)
		}
	}
	if text(get(n, "kind")) == "ResourceClaimTemplate" {
		metadata := get(n, "metadata")
		v.names[text(get(metadata, "namespace"))+"/"+text(get(metadata, "name"))] = true
	}
}

// object converts one object.
type object struct {
	*Converter
	where     string
	name      string
	namespace string
	templates []*yaml.Node
	notes     []Note
}

// note adds a note about the object, with the line of a node.
func (o *object) note(at *yaml.Node, container, format string, args ...any) {
	where := o.where
	if container != "" {
		where += ", container " + container
	}
	o.notes = append(o.notes, Note{Line: at.Line, Where: where, Text: fmt.Sprintf(format, args...)})
}

// fail adds a note with the reason why the object cannot be converted.
func (o *object) fail(at *yaml.Node, container, format string, args ...any) {
	o.note(at, container, format, args...)
	o.notes[len(o.notes)-1].Failed = true
}

// convert converts an object, or each object of a List. It keeps an object that cannot be
// converted.
func (o *object) convert(n *yaml.Node) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return n
	}
	if list := items(n); list != nil {
		var out []*yaml.Node
		for _, item := range list.Content {
			own := object{Converter: o.Converter}
			item = own.convert(item)
			for _, t := range own.templates {
				out = append(out, t.Content[0])
			}
			out, o.notes = append(out, item), append(o.notes, own.notes...)
		}
		list.Content = out
		return n
	}
	metadata := get(n, "metadata")
	o.name, o.namespace = text(get(metadata, "name")), text(get(metadata, "namespace"))
	if o.name == "" {
		o.name = strings.TrimRight(text(get(metadata, "generateName")), "-")
	}
	o.where = text(get(n, "kind")) + " " + o.name
	new, ok := expand(n)
	if !ok {
		o.fail(n, "", "its aliases stand for too much (write it out)")
		return n
	}
	o.walk(new)
	if !o.failed() {
		o.forgotten(new, "")
	}
	if o.failed() {
		o.templates, o.notes = nil, slices.DeleteFunc(o.notes, func(n Note) bool { return !n.Failed })
	}
	for _, t := range o.templates {
		o.know(t.Content[0])
	}
	if o.failed() || len(o.templates)+len(o.notes) == 0 {
		return n
	}
	return new
}

// failed reports whether the object cannot be converted.
func (o *object) failed() bool {
	return slices.ContainsFunc(o.notes, func(n Note) bool { return n.Failed })
}

// forgotten finds remaining keys of HAMi. The object fails if a container still uses one.
func (o *object) forgotten(n *yaml.Node, under string) {
	for i, child := range n.Content {
		if n.Kind != yaml.MappingNode {
			o.forgotten(child, under)
			continue
		}
		if i%2 == 1 {
			o.forgotten(child, n.Content[i-1].Value)
			continue
		}
		known := slices.Contains(resources, child.Value)
		switch under {
		case "limits", "requests", "<<":
			if known {
				o.fail(child, "", "%s is where it is not understood (write it in the limits of a container)", child.Value)
			}
		case "hard", "minResources":
			if known || slices.Contains(resources, quotaOf(child.Value)) {
				o.note(child, "", "%s is left, and does not count claims (%s.deviceclass.resource.k8s.io/devices does, in a ResourceQuota)", child.Value, o.Class)
			}
		}
	}
}

// quotaOf returns the resource of a key of a ResourceQuota.
func quotaOf(key string) string {
	_, name, _ := strings.Cut(key, ".")
	return name
}

// walk finds pods at any depth: a Pod, or the template of a workload of any kind.
func (o *object) walk(n *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		if spec := get(n, "spec"); spec != nil && get(spec, "containers") != nil && get(spec, "containers").Kind == yaml.SequenceNode {
			o.pod(n, spec)
			return
		}
	}
	for _, child := range n.Content {
		o.walk(child)
	}
}

// pod converts a pod or the template of one.
func (o *object) pod(pod, spec *yaml.Node) {
	selectors := o.selectors(get(pod, "metadata"))
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
			if r, ok := o.read(container); ok {
				users = append(users, user{container, r})
			}
		}
	}
	if len(users) == 0 {
		return
	}
	claims := ensure(spec, "resourceClaims", yaml.SequenceNode)
	for _, u := range users {
		claim, template := "gpu", o.name+"-gpu"
		if len(users) > 1 {
			claim, template = "gpu-"+u.request.container, o.name+"-"+u.request.container+"-gpu"
		}
		claim = unused(claim[:min(len(claim), maxClaim)], func(name string) bool {
			return slices.ContainsFunc(claims.Content, func(c *yaml.Node) bool { return text(get(c, "name")) == name })
		})
		template = unused(template, o.taken)
		claims.Content = append(claims.Content, mapping("name", scalar(claim), "resourceClaimTemplateName", scalar(template)))
		own := ensure(ensure(u.container, "resources", yaml.MappingNode), "claims", yaml.SequenceNode)
		own.Content = append(own.Content, mapping("name", scalar(claim)))
		o.templates = append(o.templates, o.template(template, u.request, selectors))
	}
	o.podSettings(spec)
}

// maxClaim bounds the name of a claim in a pod, with space for a number.
const maxClaim = 60

// taken reports whether a template of that name exists.
func (o *object) taken(name string) bool {
	return o.names[o.namespace+"/"+name] || slices.ContainsFunc(o.templates, func(t *yaml.Node) bool { return text(get(get(t.Content[0], "metadata"), "name")) == name })
}

// unused returns a name that is not taken.
func unused(name string, taken func(string) bool) string {
	for n, try := 2, name; ; n++ {
		if !taken(try) {
			return try
		}
		try = fmt.Sprintf("%s-%d", name, n)
	}
}

// podSettings removes settings for HAMi, and settings that would give the pod all GPUs.
func (o *object) podSettings(spec *yaml.Node) {
	if n := get(spec, "schedulerName"); text(n) == "hami-scheduler" {
		remove(spec, "schedulerName")
		o.note(n, "", "schedulerName %s is removed: the scheduler of Kubernetes places the pod", n.Value)
	}
	if n := get(spec, "runtimeClassName"); text(n) == "nvidia" {
		remove(spec, "runtimeClassName")
		o.note(n, "", "runtimeClassName nvidia is removed: it gives the pod all GPUs that NVIDIA_VISIBLE_DEVICES of its image names")
	}
}

// selectors returns HAMi's annotations about devices as expressions.
func (o *object) selectors(metadata *yaml.Node) (out []string) {
	annotations := get(metadata, "annotations")
	if annotations == nil {
		return nil
	}
	for i := 0; i+1 < len(annotations.Content); {
		at, key, value := annotations.Content[i], annotations.Content[i].Value, annotations.Content[i+1].Value
		expression, known := selector(key, value)
		switch {
		case expression != "":
			out = append(out, expression)
			annotations.Content = append(annotations.Content[:i], annotations.Content[i+2:]...)
			o.note(at, "", "annotation %s is a selector of the claim now", key)
			continue
		case known || strings.HasPrefix(key, "hami.io/"):
			o.note(at, "", "annotation %s: %s is left, and has no effect", key, value)
		}
		i += 2
	}
	if len(annotations.Content) == 0 {
		remove(metadata, "annotations")
	}
	return out
}

// selector converts one of HAMi's annotations to an expression. known is true for an annotation
// that needs no expression.
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
