package job

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/safepath"
)

// PolicyRefused is a file in root's folder of jobs: the latest rations that the policy's service refused.
// Only root can write it. Everybody can read it, as the limits of all users' jobs.
const PolicyRefused = "policy.refused"

// PolicyRemoved is a file in root's folder of jobs: what the regions of jobs said last that the policy's service removed. Only
// root can read it.
const PolicyRemoved = "policy.removed"

// Denied is a ration that the policy's service refused to a user. Sizes are bytes.
type Denied struct {
	Time    time.Time      `json:"at"`
	UID     int            `json:"uid"`
	User    string         `json:"user"`                   // the UID if the user has no name
	Count   uint64         `json:"count"`                  // refusals of this user since boot, with this one
	Earlier uint64         `json:"earlier,omitempty"`      // refusals since Time that this one replaced, because there were many in a short time
	Device  int            `json:"device"`                 // -1 if the refusal is not about one device
	Asked   uint64         `json:"asked,omitempty"`        // memory of that device
	Held    uint64         `json:"held,omitempty"`         // of it that is in the rations of other users
	Total   uint64         `json:"total,omitempty"`        // size of the device
	Holders []DeniedHolder `json:"holders,omitempty"`      // users with the largest rations, largest first
	Own     bool           `json:"own,omitempty"`          // the request exceeds what the user may have: other users are not the reason
	What    string         `json:"what,omitempty"`         // what was refused, if not the user's ration: a run, a larger ration
	Unknown bool           `json:"rule_unknown,omitempty"` // the policy's rule for the user could not be found
	Settled bool           `json:"settled,omitempty"`      // the user has got a ration since then, or needs none
	Text    string         `json:"text"`                   // a sentence without a period; what the user can do is in brackets at its end
}

// DeniedHolder is a user whose ration was on the device then.
type DeniedHolder struct {
	UID  int    `json:"uid"`
	User string `json:"user"`
	Held uint64 `json:"held"`
}

// maxDenied bounds how many refusals are kept, and maxDeniedFile their size in bytes.
const (
	maxDenied     = 256
	maxDeniedFile = 1 << 20
)

// ReadDenied returns the latest refusals of the policy's service, oldest first: those of all users, or of
// this process's.
func ReadDenied(all bool) (out []Denied, err error) {
	out, err = readDenied()
	if !all {
		out = slices.DeleteFunc(out, func(d Denied) bool { return d.UID != os.Getuid() })
	}
	return out, err
}

func readDenied() (out []Denied, err error) {
	return ReadPolicyFile[Denied](PolicyRefused, maxDeniedFile)
}

// ReadPolicyFile returns the list in a file that the policy's service writes into root's folder of jobs, of which it reads at
// most so many bytes. It returns nothing if there is no such file.
func ReadPolicyFile[T any](name string, most int64) (out []T, err error) {
	fd, err := safepath.Open(filepath.Join(RootFolder, name), unix.O_RDONLY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	return out, err
}

// AddDenied records a refusal. If entry is false, it replaces the user's latest entry, except for its time: that entry
// is no new event. The caller holds the lock of PolicyLock.
func AddDenied(d Denied, entry bool) error {
	all, _ := readDenied() // a file that cannot be read is replaced
	return writeDenied(withDenied(all, d, entry))
}

func writeDenied(all []Denied) error {
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return safepath.Replace(filepath.Join(RootFolder, PolicyRefused), text, 0o644)
}

// SettleDenied records that a user has got a ration, another one, or its own back; or that the user, or with a UID of -1 any
// user, needs none. The caller holds the lock of PolicyLock.
func SettleDenied(uid int) error {
	all, err := readDenied()
	if err != nil || !settle(all, uid) {
		return err
	}
	return writeDenied(all)
}

// settle reports whether it has changed an entry.
func settle(all []Denied, uid int) (changed bool) {
	for i := range all {
		if d := &all[i]; (d.UID == uid || uid < 0) && !d.Settled {
			d.Settled, changed = true, true
		}
	}
	return changed
}

func withDenied(all []Denied, d Denied, entry bool) []Denied {
	last := -1
	for i := range all {
		if all[i].UID == d.UID {
			last = i
		}
	}
	d.Count = 1
	if last >= 0 {
		d.Count = all[last].Count + 1
	}
	if entry || last < 0 {
		all = append(all, d)
	} else {
		d.Time, d.Earlier = all[last].Time, all[last].Earlier+1
		all[last] = d
	}
	return all[max(0, len(all)-maxDenied):]
}
