package job

import (
	"cmp"
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
	Clients []Client `json:"clients,omitempty"` // all programs of the user that wait; PID and Start are those of the first
}

// Client is a program that waits for its user's ration.
type Client struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // as in Waiting
}

// ClientOf returns the client with a PID; this process if it is 0, because the client cannot be seen from here.
func ClientOf(pid int) Client {
	c := Client{PID: cmp.Or(pid, os.Getpid())}
	c.Start, _ = proc.Started(c.PID)
	return c
}

// exists reports whether the program exists: another process may have its PID by now.
func (c Client) exists() bool {
	start, err := proc.Started(c.PID)
	return err == nil && start == c.Start
}

// PublishWaiting writes the users that wait in root's queue; clients are their programs, by user. Calls must not overlap.
func PublishWaiting(clients map[int][]Client) error {
	all, err := Queue(RootFolder)
	if err != nil {
		return err
	}
	users := []UserWaiting{}
	for i, w := range all {
		if w.UID > 0 {
			users = append(users, UserWaiting{i + 1, w, clients[w.UID]})
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

// WaitingUsers returns the users that wait in root's queue, or that waited when the service ended, in their order, and of
// their programs those that exist; no user without one. A user whose first program has ended does not seem to have left the
// queue before the service names the next.
func WaitingUsers() (all []UserWaiting) {
	all, err := ReadPolicyFile[UserWaiting](PolicyWaiting, maxWaitingFile)
	if err != nil {
		return nil
	}
	for i := range all {
		w := &all[i]
		if len(w.Clients) == 0 {
			w.Clients = []Client{{w.PID, w.Start}}
		}
		if w.Clients = slices.DeleteFunc(w.Clients, func(c Client) bool { return !c.exists() }); len(w.Clients) > 0 {
			w.PID, w.Start = w.Clients[0].PID, w.Clients[0].Start
		}
	}
	return slices.DeleteFunc(all, func(w UserWaiting) bool { return len(w.Clients) == 0 })
}
