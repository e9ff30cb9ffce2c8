package binaries

import (
	"os"
	"strings"
	"testing"
)

// The version that is linked into the programs is the one that is built.
func TestVersion(t *testing.T) {
	text, err := os.ReadFile("kubernetes/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "k8s.io/kubernetes "+version+" ") {
		t.Errorf("kubernetes/go.mod does not have k8s.io/kubernetes %s", version)
	}
}

// A program that is not built is said to be missing, with what builds it.
func TestMissing(t *testing.T) {
	t.Setenv(CacheVariable, t.TempDir())
	missing, takes, err := Missing(ControlPlane)
	if err != nil || len(missing) != len(ControlPlane) || takes.Minutes() < 5 {
		t.Errorf("missing %v, %v, %v", missing, takes, err)
	}
	path, err := programs[0].path()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := programs[0].path(); again != path {
		t.Errorf("the path changes: %s, %s", path, again)
	}
}
