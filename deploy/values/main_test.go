package main

import (
	"os"
	"strings"
	"testing"

	"ration/check/expect"
)

// The page of the chart is what make generate writes.
func TestPage(t *testing.T) {
	path, want, err := update("../../kube/chart")
	expect.OK(t, err)
	got, err := os.ReadFile(path)
	expect.OK(t, err)
	expect.Must(t, string(got) == string(want), path, "is not what make generate writes")
}

func TestTable(t *testing.T) {
	got, err := table([]byte("# A group,\n# of two lines.\na:\n  # First.\n  b: \"\"\n  # With a | in it.\n  c: {d: 1}\n# Listed.\ne:\n  - f\n"))
	expect.OK(t, err)
	expect.Equal(t, got, "\n| value | default | what it is |\n|---|---|---|\n| `a` |  | A group, of two lines. |\n| `a.b` | `\"\"` | First. |\n"+
		"| `a.c` | `{d: 1}` | With a \\| in it. |\n| `e` | `[f]` | Listed. |\n\n")
	_, err = table([]byte("# A.\na: 1\nb: 2\n"))
	expect.True(t, err != nil && strings.Contains(err.Error(), "line 3: b has no comment"), err)
}
