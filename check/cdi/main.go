// Command cdi checks specs that `ration cdi` wrote with the library that Docker, Podman and
// containerd read them with, and prints what that makes of an OCI spec. It is a module of its
// own, so that ration does not depend on that library.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run injects a device from the specs of a folder into an empty OCI spec.
func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: cdi FOLDER DEVICE")
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(args[0]), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	if err := cache.Refresh(); err != nil { // specs that are not valid are errors here
		return err
	}
	spec := &oci.Spec{}
	if missing, err := cache.InjectDevices(spec, args[1]); err != nil {
		return fmt.Errorf("injecting %s (%v): %w", args[1], missing, err)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(spec)
}
