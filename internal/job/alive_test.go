package job

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestHold(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	if _, err := Join("train"); !errors.Is(err, ErrNoJob) {
		t.Fatalf("joined nothing: %v", err)
	}
	h, err := Begin("train")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Begin("train"); !errors.Is(err, ErrInUse) {
		t.Errorf("began twice: %v", err)
	}
	if err := errors.Join(os.WriteFile(h.Job.Path, nil, 0o600), h.Share()); err != nil {
		t.Fatal(err)
	}
	other, err := Join("train")
	if err != nil {
		t.Fatal(err)
	}
	if h.Release(); !Running(other.Job) {
		t.Error("it ended with the first of two")
	}
	if _, err := Begin("train"); !errors.Is(err, ErrInUse) {
		t.Errorf("began beside one that joined: %v", err)
	}
	if other.Release(); Running(h.Job) {
		t.Error("it goes on without anybody")
	}
	// What is left is cleared away.
	again, err := Begin("train")
	if err != nil {
		t.Fatal(err)
	}
	if exists(again.Job.Path) {
		t.Error("the old region is still there")
	}
	if !again.End() || exists(again.Folder) {
		t.Error("its folder is still there")
	}
}

func TestHoldIsInherited(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	h, err := Begin("train")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Share(); err != nil {
		t.Fatal(err)
	}
	stop, err := h.Inherit()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("cat")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	stop()
	if h.End() {
		t.Error("it was removed under its child")
	}
	if !Running(h.Job) {
		t.Error("it ended before its child")
	}
	if err := errors.Join(stdin.Close(), child.Wait()); err != nil {
		t.Fatal(err)
	}
	if Running(h.Job) {
		t.Error("it goes on without anybody")
	}
}
