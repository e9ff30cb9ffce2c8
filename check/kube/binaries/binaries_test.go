package binaries

import (
	"os"
	"strings"
	"testing"

	"ration/check/expect"
)

// The version that is linked into the programs is the one that is built.
func TestVersion(t *testing.T) {
	text, err := os.ReadFile("kubernetes/go.mod")
	expect.OK(t, err)
	expect.True(t, strings.Contains(string(text), "k8s.io/kubernetes "+version+" "),
		"kubernetes/go.mod does not have k8s.io/kubernetes", version)
}

// A program that is not built is said to be missing, with what builds it.
func TestMissing(t *testing.T) {
	t.Setenv(CacheVariable, t.TempDir())
	missing, takes, err := Missing(ControlPlane)
	expect.True(t, err == nil && len(missing) == len(ControlPlane) && takes.Minutes() >= 5, "missing", missing, takes, err)
	path, err := programs[0].path()
	expect.OK(t, err)
	again, _ := programs[0].path()
	expect.Equal(t, again, path, "the path changes")
}
