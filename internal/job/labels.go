package job

import (
	"fmt"
	"slices"
	"strings"

	"ration/internal/termtext"
)

// Project is the label by which accounts of usage are added up.
const Project = "project"

// Bounds of a job's labels. All of them always fit in the file.
const (
	maxLabels = 8
	maxLabel  = 63 // bytes of a key, and of a value
)

// ParseLabels reads labels of the form KEY=VALUE.
func ParseLabels(texts []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range texts {
		key, value, is := strings.Cut(text, "=")
		if !is || !validLabel(key, value) {
			return nil, fmt.Errorf("%q: not a label (use KEY=VALUE: a key of a-z, 0-9, -, _ and ., a printable value, at most %d bytes each)", text, maxLabel)
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("%q: the label %s is given twice", text, key)
		}
		out[key] = value
	}
	if len(out) > maxLabels {
		return nil, fmt.Errorf("%d labels: there may be %d", len(out), maxLabels)
	}
	return out, nil
}

func validLabel(key, value string) bool {
	other := func(c rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.", c) }
	return key != "" && len(key) <= maxLabel && !strings.ContainsFunc(key, other) &&
		value != "" && len(value) <= maxLabel && termtext.Printable(value) == value
}

// boundLabels drops labels that no launcher writes: the job's user can write the file.
func boundLabels(labels map[string]string) map[string]string {
	var out map[string]string
	keys := []string{}
	for key, value := range labels {
		if validLabel(key, value) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys[:min(len(keys), maxLabels)] {
		if out == nil {
			out = map[string]string{}
		}
		out[key] = labels[key]
	}
	return out
}
