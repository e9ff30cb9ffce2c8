package job

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
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

func TestTidy(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	living, err := Begin("living")
	if err != nil {
		t.Fatal(err)
	}
	defer living.End()
	if path, err := Make("by-hand"); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range Kept + 3 {
		h, err := Begin(fmt.Sprint("ended-", i))
		if err != nil {
			t.Fatal(err)
		}
		then := time.Unix(int64(i), 0)
		if err := os.Chtimes(filepath.Join(h.Folder, aliveName), then, then); err != nil {
			t.Fatal(err)
		}
		h.Release()
	}
	Tidy()
	left, err := os.ReadDir(Folder())
	if err != nil || len(left) != Kept+2 {
		t.Errorf("got %d, %v, want %d", len(left), err, Kept+2)
	}
	for _, e := range left {
		if e.Name() == "ended-0" || e.Name() == "ended-2" {
			t.Errorf("%s is still there", e.Name())
		}
	}
}
