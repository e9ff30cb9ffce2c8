package job

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	"ration/internal/proc"
	"ration/internal/safepath"
)

// PolicyWaiting is a file in root's folder of jobs: the users that wait for a ration in root's queue. Only root can
// write it. Everybody can read it, unlike the queue: a process that can open that can lock it.
//
// The policy's service writes it after each change of the queue that it sees. A service that is killed leaves
// an old file, until the next one starts; so a reader checks that the process which waits still exists.
const PolicyWaiting = "policy.waiting"

// maxWaitingFile bounds what is read of it.
const maxWaitingFile = maxWaiting * recordSize

// UserWaiting is a user that waits for a ration of the policy.
type UserWaiting struct {
	Place int `json:"place"` // in root's queue; 1 is the next
	Waiting
}

// PublishWaiting writes the users that wait in root's queue. Calls must not overlap.
func PublishWaiting() error {
	all, err := Queue(RootFolder)
	if err != nil {
		return err
	}
	users := []UserWaiting{}
	for i, w := range all {
		if w.UID > 0 {
			users = append(users, UserWaiting{i + 1, w})
		}
	}
	text, err := json.Marshal(users)
	if err != nil {
		return err
	}
	return safepath.Replace(filepath.Join(RootFolder, PolicyWaiting), text, 0o644)
}

// WaitingFor returns the job that a user's program waits for the policy to make, if the argument names that user and
// this user may know it: root, or the user.
func WaitingFor(argument string) (j Job, waits bool) {
	uid, err := proc.UID(argument)
	if err != nil || !AllUsers() && uid != os.Getuid() {
		return Job{}, false
	}
	_, waits = WaitingForRation(uid)
	return Job{Path: OfUserPath(uid)}, waits
}

// WaitingForRation returns the user's place in root's queue, if a program of the user waits there.
func WaitingForRation(uid int) (w UserWaiting, waits bool) {
	all := WaitingUsers()
	i := slices.IndexFunc(all, func(w UserWaiting) bool { return w.UID == uid })
	if i < 0 {
		return UserWaiting{}, false
	}
	return all[i], true
}

// WaitingUsers returns the users that wait in root's queue, or that waited when the service ended, in their order, if the
// process that waits exists.
func WaitingUsers() (all []UserWaiting) {
	all, err := ReadPolicyFile[UserWaiting](PolicyWaiting, maxWaitingFile)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(all, func(w UserWaiting) bool {
		start, err := proc.Started(w.PID)
		return err != nil || start != w.Start
	})
}
