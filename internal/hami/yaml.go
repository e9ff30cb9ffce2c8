package hami

import (
	"strconv"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds an object after its aliases are expanded. It is much larger than an API server accepts.
const maxNodes = 1 << 17

// expand returns a copy of a node with its aliases expanded, because each use of an alias may be converted
// differently. ok is false if the copy is too large.
func expand(n *yaml.Node) (_ *yaml.Node, ok bool) {
	left := maxNodes
	out := copyNode(n, &left)
	return out, left > 0
}

func copyNode(n *yaml.Node, left *int) *yaml.Node {
	if *left--; *left <= 0 {
		return n
	}
	out := *n
	if n.Kind == yaml.AliasNode {
		line := n.Line
		out = *n.Alias
		out.Line = line
	}
	out.Anchor, out.Alias = "", nil
	children := out.Content
	out.Content = make([]*yaml.Node, 0, len(children))
	for _, child := range children {
		out.Content = append(out.Content, copyNode(child, left))
	}
	return &out
}

// get returns the value of a key in a mapping, or nil.
func get(m *yaml.Node, key string) *yaml.Node {
	if m == nil || m.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i+1]
		}
	}
	return nil
}

// text returns the value of a scalar, or "".
func text(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// remove removes a key from a mapping.
func remove(m *yaml.Node, key string) {
	if m == nil || m.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			m.Content = append(m.Content[:i], m.Content[i+2:]...)
			return
		}
	}
}

// add adds keys and values to a mapping.
func add(m *yaml.Node, pairs ...any) {
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Content = append(m.Content, scalar(pairs[i].(string)), pairs[i+1].(*yaml.Node))
	}
}

// ensure returns the value of a key, which it adds if it is missing.
func ensure(m *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	if n := get(m, key); n != nil && n.Kind == kind {
		return n
	}
	remove(m, key)
	n := &yaml.Node{Kind: kind}
	add(m, key, n)
	return n
}

func mapping(pairs ...any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	add(n, pairs...)
	return n
}

func sequence(items ...*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Content: items}
}

func scalar(value string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(value)
	return n
}

func integer(value int) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.Itoa(value)}
}
