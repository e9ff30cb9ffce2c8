package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/job"
	"ration/internal/region"
)

// A job cannot hide that it runs by what it writes into its region: here, that no slot is taken.
func TestStateOfOneThatHides(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	holdAs(t, os.Args[0], os.Geteuid(), path)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	expect.OK(t, err)
	defer f.Close()
	for slot := range abi.Slots {
		if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, 0), observer.Offset("Status", slot)); err != nil {
			t.Fatal(err)
		}
	}
	j, err := ReadJob(path)
	expect.True(t, err == nil && len(j.Processes) == 0 && j.State == Running, "got", j.State, "with", len(j.Processes), "processes", err)
}

// A job of another version is listed with those who use it, by the kernel's word.
func TestAnotherVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	// The one that came last has the first slot: the kernel names the other first.
	gone := holdAs(t, os.Args[0], os.Geteuid(), path)
	first := holdAs(t, os.Args[0], os.Geteuid(), path)
	expect.OK(t, gone.Process.Kill())
	_ = gone.Wait()
	r, err := region.Open(path, region.Options{NoCreate: true})
	expect.OK(t, err)
	if n, err := r.Reap(); n != 1 || err != nil {
		t.Fatalf("reaped %d, %v", n, err)
	}
	expect.OK(t, r.Close())
	second := holdAs(t, os.Args[0], os.Geteuid(), path)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	expect.OK(t, err)
	defer f.Close()
	if _, err := f.WriteAt([]byte{abi.Version + 1}, observer.Offset("Header", "Version")); err != nil {
		t.Fatal(err)
	}
	j, err := ReadJob(path)
	expect.Must(t, errors.Is(err, ErrVersion) && j.State == Running && len(j.Processes) == 2, "got", j, err)
	pids := map[int]bool{first.Process.Pid: true, second.Process.Pid: true}
	for _, p := range j.Processes {
		expect.True(t, p.Verified && pids[p.HostPID] && p.UID == os.Geteuid() && p.Name != "" && p.Slot == -1, "got", p)
		delete(pids, p.HostPID)
	}
}

// A process is below the one of the job that started it, itself or through others.
func TestParent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	t.Setenv(envChild, "1")
	parent := holdAs(t, os.Args[0], os.Geteuid(), path)
	j, err := ReadJob(path)
	expect.Must(t, err == nil && len(j.Processes) == 2, "got", j, err)
	for _, p := range j.Processes {
		want := parent.Process.Pid
		if p.HostPID == want {
			want = 0
		}
		if !region.OnHost() {
			want = 0 // PIDs of this namespace are not the host's
		}
		expect.True(t, p.Parent == want, "the parent of", p.HostPID, "is", p.Parent, "want", want)
	}
}

// Without a launcher a job is starting for an hour, and has ended when all have gone.
func TestStateWithoutLauncher(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name   string
		job    Job
		launch job.Launch
		want   string
	}{
		{"just made", Job{Created: now}, job.Launch{}, Starting},
		{"made long ago", Job{Created: now.Add(-2 * time.Hour)}, job.Launch{}, Ended},
		{"all have gone", Job{Created: now, Claims: 1}, job.Launch{}, Ended},
		{"launched", Job{Created: now}, job.Launch{Launched: true, Running: true}, Starting},
		{"launched, and uses no GPU yet", Job{Created: now, Started: now.Add(-startingTime / 2)}, job.Launch{Launched: true, Running: true}, Starting},
		{"launched, and uses no GPU", Job{Created: now, Started: now.Add(-startingTime)}, job.Launch{Launched: true, Running: true}, Idle},
		{"launched, all have gone", Job{Created: now, Claims: 3}, job.Launch{Launched: true, Running: true}, Idle},
		{"standing", Job{Created: now.Add(-2 * time.Hour)}, job.Launch{Launched: true, Standing: true}, Idle},
		{"standing, all have gone", Job{Created: now, Claims: 3}, job.Launch{Launched: true, Standing: true}, Idle},
		{"its command has ended", Job{Created: now}, job.Launch{Launched: true}, Ended},
		{"a process is left", Job{State: Running}, job.Launch{Launched: true}, Running},
		{"unreadable", Job{err: region.ErrSize}, job.Launch{}, Ended},
		{"unreadable, launched", Job{err: region.ErrSize}, job.Launch{Launched: true, Running: true}, Starting},
	} {
		expect.Equal(t, c.job.stateWith(c.launch, now), c.want, c.name)
	}
}

// Whatever is in the file that a launcher writes, what is read of it can be shown.
func TestHostileInfo(t *testing.T) {
	dir := t.TempDir()
	path := makeRegionAt(t, filepath.Join(dir, "region"))
	for name, content := range map[string][]byte{
		"rubbish": []byte("\x00\xff\n\n"), "control": []byte(`{"command":["\u001b[2J","\u202e"],"started":-1}` + "\n"),
		"huge":      append(append([]byte(`{"command":["`), bytes.Repeat([]byte("x"), 1<<20)...), []byte("\"]}\n")...),
		"many ends": []byte("{}\n" + `{"status":1,"ended":9223372036854775807}` + "\n" + `{"status":2}` + "\n"),
	} {
		expect.OK(t, os.WriteFile(filepath.Join(dir, "info"), content, 0o600))
		j, err := ReadJob(path)
		expect.True(t, err == nil && len(j.Command) <= 2, name, j.Command, err)
		for _, arg := range j.Command {
			expect.True(t, arg == "?[2J" || arg == "?", name, arg)
		}
	}
	// A pipe makes nobody wait.
	expect.OK(t, errors.Join(os.Remove(filepath.Join(dir, "info")), mkfifo(filepath.Join(dir, "info")), mkfifo(filepath.Join(dir, "alive"))))
	if j, err := ReadJob(path); err != nil || len(j.Command) != 0 {
		t.Errorf("got %+v, %v", j, err)
	}
}
