package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// cgroups returns the folders of a cgroup: one in all, or with the first version of cgroups one for each controller.
func cgroups(name string) (folders []string, err error) {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{filepath.Join(root, name)}, nil
	}
	controllers, err := os.ReadDir(root)
	for _, c := range controllers {
		if c.IsDir() { // others are links to them
			folders = append(folders, filepath.Join(root, c.Name(), name))
		}
	}
	return folders, err
}

// makeCgroups makes the cgroup below which the kubelet has all of its own, which it wants to find.
func makeCgroups(name string) error {
	folders, err := cgroups(name)
	for _, folder := range folders {
		err = errors.Join(err, os.Mkdir(folder, 0o755))
	}
	if err != nil {
		return fmt.Errorf("making cgroups: %w (in a container, they have to be mounted writable)", err)
	}
	return nil
}

// removeCgroups removes a cgroup and all below it. No process is in them any more.
func removeCgroups(name string) error {
	folders, err := cgroups(name)
	for _, folder := range folders {
		err = errors.Join(err, removeCgroup(folder))
	}
	return err
}

func removeCgroup(folder string) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeCgroup(filepath.Join(folder, e.Name())))
		}
	}
	return errors.Join(err, os.Remove(folder))
}
