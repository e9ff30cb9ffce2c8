package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// programsVariable names the folder of the programs, which check/kube/binaries/build prints.
const programsVariable = "RATION_E2E_PROGRAMS"

// ErrNotBuilt is returned for a program that is not there.
var ErrNotBuilt = errors.New("not built yet")

// Program returns the path of a part of Kubernetes.
func Program(name string) (string, error) {
	path := filepath.Join(os.Getenv(programsVariable), name)
	if _, err := os.Stat(path); err != nil || !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s: %w (make e2e-sched and make e2e-node build it, and name its folder in %s)", name, ErrNotBuilt, programsVariable)
	}
	return path, nil
}
