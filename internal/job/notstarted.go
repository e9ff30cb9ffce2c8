package job

import (
	"encoding/json"
	"path/filepath"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
)

// notStartedName is a file in the folder of an ended job: a later command of its name was not started. The next job of that
// name removes it with the rest of the folder.
const notStartedName = "not-started"

// maxNotStarted bounds the file, and maxWhy notStarted.Why, in bytes.
const (
	maxNotStarted = 4 << 10
	maxWhy        = 1 << 10
)

type notStarted struct {
	Status int    `json:"status"` // exit status of ration run
	Why    string `json:"why"`
}

// RecordNotStarted records that a command was not started, if an earlier job of that name has ended: Wait must not return
// the end of that one. Without an earlier job there is none to wait for, and nothing to record.
func RecordNotStarted(name string, status int, why string) {
	path, err := RegionPath(name)
	if err != nil || !safepath.Exists(filepath.Join(filepath.Dir(path), infoName)) {
		return
	}
	l, err := acquire(name, exclusive) // no other launcher makes the job meanwhile
	if err != nil {
		return // it is in use, and has not ended
	}
	defer l.Release()
	if u, _ := inspect(l.Job); len(u.living) > 0 || isStanding(l.Job) {
		return
	}
	if line, err := json.Marshal(notStarted{status, cutText(why, maxWhy)}); err == nil {
		_ = safepath.Replace(filepath.Join(l.Folder, notStartedName), append(line, '\n'), 0o600) // the caller has an error of its own
	}
}

// readNotStarted returns the end of a command that was not started, or nil. The file is its user's word.
func readNotStarted(dir int) *End {
	fd, err := safepath.OpenAt(dir, notStartedName, unix.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var n notStarted
	if json.Unmarshal(readStart(fd, maxNotStarted), &n) != nil || n.Status <= 0 || n.Status > 255 || n.Why == "" {
		return nil
	}
	return &End{Status: n.Status, NotStarted: cutText(n.Why, maxWhy)}
}
