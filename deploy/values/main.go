// Command values writes the table of a chart's values into its README.md, from the comments of its
// values.yaml.
//
//	values CHART
//
// The table is between the two lines that mark it. A value without a comment is an error.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:generate go run . ../../kube/chart

// The lines of the page before and after the table.
const (
	begin = "<!-- Written by make generate from values.yaml. -->\n"
	end   = "<!-- End of the values. -->\n"
)

// row is a value: its path, its default and what its comment says. A group of values has no default.
type row struct{ name, value, comment string }

// rows returns the values of a mapping. A mapping in it that is written on lines of its own is a group of values;
// one that is written in a line is one value.
func rows(prefix string, mapping *yaml.Node) (out []row, err error) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		r := row{name: prefix + key.Value, comment: strings.Join(strings.Fields(strings.ReplaceAll("\n"+key.HeadComment, "\n#", "\n")), " ")}
		if r.comment == "" {
			return nil, fmt.Errorf("line %d: %s has no comment that says what it is", key.Line, r.name)
		}
		var below []row
		if value.Kind == yaml.MappingNode && value.Style&yaml.FlowStyle == 0 {
			below, err = rows(r.name+".", value)
		} else {
			r.value, err = oneLine(value)
		}
		if err != nil {
			return nil, err
		}
		out = append(append(out, r), below...)
	}
	return out, nil
}

// oneLine returns a value as YAML in one line.
func oneLine(value *yaml.Node) (string, error) {
	flow := *value
	if flow.Kind != yaml.ScalarNode {
		flow.Style = yaml.FlowStyle
	}
	flow.HeadComment, flow.LineComment, flow.FootComment = "", "", ""
	text, err := yaml.Marshal(&flow)
	return "`" + strings.Join(strings.Fields(string(text)), " ") + "`", err
}

// table returns the values of a file as a table.
func table(values []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return "", err
	}
	root := document.Content[0]
	root.Content[0].HeadComment = document.HeadComment + root.Content[0].HeadComment // the first one's is taken for the file's
	list, err := rows("", root)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("\n| value | default | what it is |\n|---|---|---|\n")
	for _, r := range list {
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", r.name, r.value, strings.ReplaceAll(r.comment, "|", `\|`))
	}
	return out.String() + "\n", nil
}

// update returns the page of the chart in a folder with the table of its values, and the page's path.
func update(folder string) (path string, text []byte, err error) {
	values, err := os.ReadFile(filepath.Join(folder, "values.yaml"))
	if err != nil {
		return "", nil, err
	}
	list, err := table(values)
	if err != nil {
		return "", nil, fmt.Errorf("reading values.yaml: %w", err)
	}
	path = filepath.Join(folder, "README.md")
	page, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	before, rest, found := strings.Cut(string(page), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return "", nil, fmt.Errorf("%s does not have the lines that mark the table: %s%s", path, begin, end)
	}
	return path, []byte(before + begin + list + end + after), nil
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: values CHART")
		os.Exit(2)
	}
	path, text, err := update(os.Args[1])
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "values:", err)
		os.Exit(1)
	}
}
