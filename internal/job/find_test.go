package job

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ration/internal/abi"
	"ration/internal/limit"
	"ration/internal/region"
)

// used makes a job that this process has joined, and returns its slot.
func used(t *testing.T, name string) (Job, *region.Slot) {
	t.Helper()
	path, err := MakeFolder(name)
	if err != nil {
		t.Fatal(err)
	}
	var opt region.Options
	opt.Limits.Memory[0] = abi.MakeLimit(1<<30, 0)
	r, err := region.Open(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	slot, err := r.Claim("me")
	if err != nil {
		t.Fatal(err)
	}
	return Job{name, path}, slot
}

func TestFind(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	t.Setenv(EnvRegion, "")
	if _, err := Find("train"); !errors.Is(err, ErrNoJob) || !strings.Contains(err.Error(), "there is none in") {
		t.Errorf("got %v without any job", err)
	}
	j, slot := used(t, "train")
	defer slot.Leave()
	for what, want := range map[string]Job{"train": j, j.Path: j} {
		if got, err := Find(what); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", what, got, err, want)
		}
	}
	if _, err := Find("trains"); !errors.Is(err, ErrNoJob) || !strings.Contains(err.Error(), "(there are: train)") {
		t.Errorf("got %v, want the jobs there are", err)
	}
	if _, err := Find("a b"); !errors.Is(err, limit.ErrName) {
		t.Errorf("got %v, want ErrName", err)
	}
	if _, err := MakeFolder("empty"); err != nil {
		t.Fatal(err)
	}
	if _, err := Find("empty"); !errors.Is(err, ErrNoJob) {
		t.Errorf("got %v of a folder without a region", err)
	}
	if got, err := FindFolder("empty"); err != nil || got.Name != "empty" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestRemove(t *testing.T) {
	t.Setenv(EnvFolder, filepath.Join(t.TempDir(), "jobs"))
	j, slot := used(t, "train")
	for _, force := range []bool{false, true} {
		var living *LivingError
		if err := Remove(j, force); !errors.As(err, &living) || len(living.Living) != 1 || !errors.Is(err, ErrLiving) {
			t.Errorf("force %v: got %v, want the living process", force, err)
		}
	}
	if err := slot.Leave(); err != nil {
		t.Fatal(err)
	}
	h, err := Join("train") // as what was launched in it does
	if err != nil {
		t.Fatal(err)
	}
	if err := Remove(j, true); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v while something runs in it", err)
	}
	if s := Read(j, ReadOptions{ReadOnly: true}); s.Stale(time.Now()) {
		t.Error("stale while something runs in it")
	}
	h.Release()
	if s := Read(j, ReadOptions{ReadOnly: true}); !s.Stale(time.Now()) {
		t.Error("not stale when all have left")
	}
	if err := Remove(j, false); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(Folder()); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestSentence(t *testing.T) {
	all := []Process{
		{Slot: 0, PID: 10, Name: "hog", Joined: 100},
		{Slot: 1, PID: 11, Name: "greedy", Joined: 100},
		{Slot: 2, PID: 1, Name: "in one container", Joined: 100},
		{Slot: 3, PID: 1, Name: "in another", Joined: 100},
		{Slot: 4, PID: 12, Name: "too late", Joined: 300},
	}
	f := Refusal{Time: 200, Slot: 1, PID: 11, Asked: 4 << 30, Held: 7 << 30, Limit: 10 << 30, Own: 1 << 20,
		Top: []Holder{{PID: 10, Bytes: 3 << 30}, {PID: 1, Bytes: 2 << 30}, {PID: 12, Bytes: 1 << 30}}}
	const want = "greedy (pid 11) asked for 4 GiB with 3 GiB free of 10 GiB; " +
		"most was held by hog (pid 10) 3 GiB, pid 1 2 GiB, pid 12 1 GiB; it held 1 MiB itself"
	if got := f.Sentence(all); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	f.Slot = 2
	if got := f.RequesterName(all); got != "" {
		t.Errorf("got %q for a slot that has another owner by now", got)
	}
}

func TestGroupRefusals(t *testing.T) {
	again := func(at int64, asked uint64) Refusal { return Refusal{Time: at, PID: 1, Asked: asked} }
	got := GroupRefusals([]Refusal{again(9, 5), again(8, 5), again(7, 4), again(6, 5)})
	if len(got) != 3 || got[0].Times != 2 || got[0].First != 8 || got[0].Time != 9 || got[1].Times != 1 {
		t.Errorf("got %+v", got)
	}
}
