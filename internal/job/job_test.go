package job

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"ration/internal/abi"
	"ration/internal/limit"
	"ration/internal/region"
)

func TestFolder(t *testing.T) {
	t.Setenv(EnvFolder, "/elsewhere")
	if got := Folder(); got != "/elsewhere" {
		t.Errorf("got %s, want what %s says", got, EnvFolder)
	}
	t.Setenv(EnvFolder, "")
	if got := Folder(); os.Geteuid() == 0 && got != "/run/ration" {
		t.Errorf("got %s for root", got)
	}
}

func TestMake(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "jobs")
	t.Setenv(EnvFolder, folder)
	for range 2 { // the second time it exists
		path, err := MakeFolder("train")
		if err != nil || path != filepath.Join(folder, "train", "region") {
			t.Fatalf("got %s, %v", path, err)
		}
	}
	for _, dir := range []string{folder, filepath.Join(folder, "train")} {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: got %v, %v, want mode 0700", dir, st.Mode(), err)
		}
	}
	if _, err := MakeFolder("../train"); !errors.Is(err, limit.ErrName) {
		t.Errorf("got %v, want ErrName", err)
	}
}

func TestMakeRefuses(t *testing.T) {
	for name, plant := range map[string]func(dir string) error{
		"a link": func(dir string) error {
			return os.Symlink(t.TempDir(), dir)
		},
		"a file": func(dir string) error {
			return os.WriteFile(dir, nil, 0o600)
		},
		"writable by others": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777))
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "jobs")
			t.Setenv(EnvFolder, folder)
			if err := plant(folder); err != nil {
				t.Fatal(err)
			}
			if path, err := MakeFolder("train"); !errors.Is(err, ErrFolder) {
				t.Errorf("got %s, %v, want ErrFolder", path, err)
			}
		})
	}
}

func TestList(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "jobs")
	t.Setenv(EnvFolder, folder)
	t.Setenv(EnvRegion, "")
	if jobs, err := List(); err != nil || len(jobs) != 0 {
		t.Fatalf("got %v, %v where there is no folder", jobs, err)
	}
	var paths []string
	for _, name := range []string{"a", "b"} {
		path, err := MakeFolder(name)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if err := os.WriteFile(paths[1], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvRegion, paths[1])
	jobs, err := List()
	if err != nil || len(jobs) != 1 || jobs[0] != (Job{"b", paths[1]}) {
		t.Errorf("got %v, %v, want b, once", jobs, err)
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	if s := Read(Job{Path: path}, ReadOptions{}); !errors.Is(s.Err(), fs.ErrNotExist) || s.Error == "" {
		t.Errorf("got %v for a missing region", s.Err())
	}
	var opt region.Options
	opt.Limits.Memory[1] = abi.MakeLimit(1<<30, 100)
	r, err := region.Open(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	slot, err := r.Claim("me")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(slot.Charge(1, abi.Module, 1<<20), slot.Charge(1, abi.Data, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := slot.Charge(1, abi.Data, 1<<40); !errors.Is(err, region.ErrRefused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	s := Read(Job{Path: path}, ReadOptions{})
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	if len(s.Devices) != 1 || s.Devices[0] != (Device{1, true, 1 << 30, 100, 2 << 20, 2 << 20, 0, 1}) {
		t.Errorf("got devices %+v", s.Devices)
	}
	if len(s.Processes) != 1 || s.Processes[0].PID != os.Getpid() || s.Processes[0].State != Live || s.Processes[0].Name != "me" {
		t.Fatalf("got processes %+v", s.Processes)
	}
	want := Holding{Device: 1, Total: 2 << 20, Module: 1 << 20, Data: 1 << 20, Peak: 2 << 20}
	if h := s.Processes[0].Holdings; len(h) != 1 || h[0] != want {
		t.Errorf("got holdings %+v", h)
	}
	if f := s.Refusals; len(f) != 1 || f[0].Asked != 1<<40 || f[0].Own != 2<<20 || len(f[0].Top) != 1 {
		t.Errorf("got refusals %+v", f)
	}
}

// TestReadAll has a job that is readable, one that has not begun, one that is
// damaged, and a region outside the folder of jobs.
func TestReadAll(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	outside := filepath.Join(t.TempDir(), "region")
	t.Setenv(EnvRegion, outside)
	_, slot := used(t, "readable")
	defer slot.Leave()
	for name, content := range map[string]string{"not-begun": "", "damaged": "x"} {
		path, err := MakeFolder(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := ReadAll(ReadOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]error{}
	for _, s := range all {
		got[s.Job] = s.Err()
	}
	if len(got) != 3 || got["readable"] != nil || got["damaged"] == nil || !errors.Is(got[""], region.ErrInit) {
		t.Errorf("got %v", got)
	}
}

func TestScratch(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	path, remove, err := Scratch()
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Dir(path)); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("got %v, %v", st, err)
	}
	remove()
	left, _, err := Scratch()
	if err != nil {
		t.Fatal(err)
	}
	RemoveScratch()
	for _, p := range []string{path, left} {
		if _, err := os.Stat(filepath.Dir(p)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: got %v, want it gone", p, err)
		}
	}
}
