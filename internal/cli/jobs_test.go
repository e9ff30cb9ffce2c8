package cli

import (
	"errors"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/internal/job"
	"ration/machine"
)

// A name is this user's own job, or else the only one that runs, or the only one; USER/NAME is that
// user's, and nobody else's; and what could be several is an error that names them.
func TestChooseJob(t *testing.T) {
	t.Setenv(job.EnvFolder, "/own")
	of := func(uid int, owner, folder, name, state string) machine.Job {
		return machine.Job{Name: name, Path: folder + "/" + name + "/region", UID: uid, Owner: owner, State: state}
	}
	jobs := []machine.Job{
		of(0, "root", "/own", "mine", machine.Ended),             // 0
		of(1, "alice", "/tmp/ration-1", "mine", machine.Running), // 1
		of(1, "alice", "/tmp/ration-1", "train", machine.Running),
		of(2, "bob", "/tmp/ration-2", "train", machine.Idle), // 3
		of(1, "alice", "/tmp/ration-1", "old", machine.Ended),
		of(2, "bob", "/tmp/ration-2", "old", machine.Starting), // 5
		of(1, "alice", "/tmp/ration-1", "gone", machine.Ended),
		of(2, "bob", "/tmp/ration-2", "gone", machine.Ended), // 7
		of(3, "3", "/tmp/ration-3", "only", machine.Ended),
		of(2, "bob", "/run/user/2/ration", "train", machine.Ended), // 9
		of(2, "bob", "/run/user/2/ration", "twice", machine.Idle),
		of(2, "bob", "/tmp/ration-2", "twice", machine.Running), // 11
		of(-1, "", "/nobody", "train", machine.Running),
		{Path: "/odd", UID: 1, Owner: "alice"}, // 13
		{Name: "alice/bob", Path: "/run/ration/user-1-bob/region", UID: 1, Owner: "alice", State: machine.Running},
		{Name: "bob", Path: "/run/ration/user-2/region", UID: 2, Owner: "bob", State: machine.Idle}, // 15
		of(0, "root", "/own", "twin", machine.Running),
		of(0, "root", "/other", "twin", machine.Ended), // 17
		of(0, "root", "/own", "three", machine.Running),
		of(0, "root", "/other", "three", machine.Running), // 19
		of(0, "root", "/third", "three", machine.Running),
	}
	for argument, want := range map[string]int{
		"mine": 0, "root/mine": 0, "alice/mine": 1, "1/mine": 1, "alice/train": 2, "bob/train": 3, "2/train": 3, "old": 5, "alice/old": 4,
		"alice/gone": 6, "bob/gone": 7, "only": 8, "3/only": 8, "/run/user/2/ration/train/region": 9, "/odd": 13, "bob": 15, "alice/bob": 14,
		"twin": 16, "root/twin": 17, "three": 18, // as ration ps shows them
		"": -1, "none": -1, "alice/none": -1, "carol/train": -1, "/train": -1, "./train": -1, "-1/train": -1, "alice/": -1, "alice/train/region": -1,
	} {
		got, err := chooseJob(jobs, argument)
		expect.True(t, got == want && err == nil, argument, got, err, want)
	}
	for argument, want := range map[string]string{
		"gone":       "several users have a job of that name (name one of them: alice/gone, bob/gone)",
		"root/three": "that user has several jobs of that name (name one of them: three, /other/three/region, /third/three/region)",
		"bob/twice":  "that user has several jobs of that name (name one of them: /run/user/2/ration/twice/region, /tmp/ration-2/twice/region)",
	} {
		got, err := chooseJob(jobs, argument)
		status := statusError{}
		expect.True(t, got == -1 && err != nil && strings.HasSuffix(err.Error(), want) && errors.As(err, &status) && status.status == ExitUsage,
			argument, got, err)
	}
	_, err := chooseJob(jobs, "train")
	expect.True(t, errors.Is(err, errSeveral) && strings.Contains(err.Error(), "alice/train, bob/train"), err)
}

// Where a user's jobs could not all be read, a plain name of another's is not for certain.
func TestNotAllJobs(t *testing.T) {
	t.Setenv(job.EnvFolder, t.TempDir())
	m := machine.Machine{Jobs: []machine.Job{
		{Name: "train", Path: "/tmp/ration-1/train/region", UID: 1, Owner: "alice", State: machine.Running},
		{Name: "mine", Path: job.Folder() + "/mine/region", Owner: "root"},
	}}
	for _, argument := range []string{"train", "alice/train", "mine"} {
		_, err := findJob(&m, argument, nil)
		expect.Equal(t, err, nil, argument)
	}
	m.Findings = []machine.Finding{{Kind: machine.Unanswering, Text: "the folder of jobs of user 2 could not be read"}}
	if _, err := findJob(&m, "train", nil); err == nil || !strings.Contains(err.Error(), "user 2 could not be read (name it alice/train)") {
		t.Errorf("got %v", err)
	}
	for _, argument := range []string{"alice/train", "mine", "/tmp/ration-1/train/region"} {
		_, err := findJob(&m, argument, nil)
		expect.Equal(t, err, nil, argument)
	}
	_, err := findJob(&m, "other", nil)
	expect.True(t, errors.Is(err, job.ErrNoJob) && strings.Contains(err.Error(), "could not be read"), err)
}

// Root names a job of another user with that user once, also one that a policy made.
func TestOwnerAndName(t *testing.T) {
	for want, j := range map[string]machine.Job{
		"anna/train": {Name: "train", Owner: "anna", Path: "/run/user/4001/ration/train/region"},
		"anna/exp":   {Name: "anna/exp", Owner: "anna", Path: job.RunPath(4001, "exp")},
		"anna":       {Name: "anna", Owner: "anna", Path: job.OfUserPath(4001)},
	} {
		expect.Equal(t, ownerAndName(&j), want)
	}
}
