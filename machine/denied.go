package machine

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"ration/internal/humanfmt"
	"ration/internal/job"
)

// Denied is a ration that the machine's policy refused to a user. It is an event of kind RequestRefused. Sizes are
// bytes.
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

// ReadDenied returns the latest rations that the policy refused, oldest first: of all users for root, else
// this user's.
func ReadDenied() ([]Denied, error) { return readDenied(job.AllUsers()) }

func readDenied(all bool) (out []Denied, err error) {
	read, err := job.ReadDenied(all)
	for _, d := range read {
		one := Denied{d.Time, d.UID, d.User, d.Count, d.Earlier, d.Device, d.Asked, d.Held, d.Total, nil, d.Own, d.What, d.Unknown, d.Settled, d.Text}
		for _, h := range d.Holders {
			one.Holders = append(one.Holders, DeniedHolder(h))
		}
		out = append(out, one)
	}
	return out, err
}

// deniedRecent is how long a refusal by the policy is a finding.
const deniedRecent = 10 * time.Minute

// readDenied reads the refusals of the policy's service, if the file has changed. It reports whether it
// has.
func (s *scanner) readDenied(m *Machine) (changed bool) {
	st, err := os.Lstat(filepath.Join(job.RootFolder, job.PolicyRefused))
	if err != nil || s.denied != nil && os.SameFile(st, s.denied) { // each change is a new file
		return false
	}
	all, err := readDenied(s.allUsers())
	if err != nil {
		return false
	}
	s.denied, m.Denied = st, all
	return true
}

// deniedSince returns the events of refusals that were not there before.
func deniedSince(before, after []Denied) (out []Event) {
	type key struct {
		time time.Time
		uid  int
	}
	seen := map[key]bool{}
	for i := range before {
		seen[key{before[i].Time, before[i].UID}] = true
	}
	for i := range after {
		if d := &after[i]; !seen[key{d.Time, d.UID}] {
			out = append(out, Event{Time: d.Time, Kind: RequestRefused, Job: d.User, Owner: d.User, UID: d.UID, Path: job.OfUserPath(d.UID), Denied: d, Text: DeniedSentence(d)})
		}
	}
	return out
}

// DeniedSentence returns a refusal by the policy as a sentence without a period. For root it is without what the
// user can do.
func DeniedSentence(d *Denied) string {
	text, remedy := d.sentence()
	if remedy != "" && !job.AllUsers() {
		text += " (" + remedy + ")"
	}
	return text
}

var you = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\b(you|yours?)\b`) })

// sentence returns what happened, and what the user can do.
func (d *Denied) sentence() (text, remedy string) {
	text = d.Text
	if job.AllUsers() { // the user was told it in these words
		text = you().ReplaceAllStringFunc(text, func(word string) string {
			if word == "you" {
				return d.User
			}
			return d.User + "'s"
		})
	}
	if i := strings.LastIndex(text, " ("); i >= 0 && strings.HasSuffix(text, ")") {
		text, remedy = text[:i], strings.TrimSuffix(text[i+2:], ")")
	}
	text = fmt.Sprintf("the policy refused %s %s: %s", d.User, cmp.Or(d.What, "a ration"), text)
	var holders []string
	for _, h := range d.Holders {
		holders = append(holders, fmt.Sprintf("%s %s", h.User, humanfmt.Bytes(h.Held)))
	}
	if len(holders) > 0 {
		text += "; the largest rations there: " + strings.Join(holders, ", ")
	}
	if d.Earlier > 0 {
		text += fmt.Sprintf("; the latest of %d since then", d.Earlier+1)
	}
	return text, remedy
}

// recentlyDenied returns the latest refusal of each user that had no room lately, got none since and does not wait for
// it, with the number of the user's refusals in that time.
func (m *Machine) recentlyDenied(now time.Time) (out []Denied) {
	latest, before := map[int]Denied{}, map[int]uint64{} // before are the earlier ones that do not count
	all := map[int]uint64{}
	for _, d := range m.Denied {
		more := d.Count - min(all[d.UID], d.Count) // an entry may be of several
		all[d.UID] = d.Count
		switch {
		case now.Sub(d.Time) > deniedRecent:
			before[d.UID] = d.Count
		case d.Own: // nobody but the user can do anything about it, and the user has read it
			before[d.UID] += more
		default:
			d.Count -= min(before[d.UID], d.Count)
			latest[d.UID] = d
		}
	}
	for _, d := range latest {
		if !d.Settled && !m.waits(d.UID) && !m.hasAsked(&d) {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b Denied) int { return cmp.Compare(a.UID, b.UID) })
	return out
}

// waits reports whether a user waits for a ration.
func (m *Machine) waits(uid int) bool {
	return slices.ContainsFunc(m.Waiting, func(w Waiting) bool { return w.UID == uid && w.Path == job.OfUserPath(uid) })
}

// hasAsked reports whether the user has as much now as was refused.
func (m *Machine) hasAsked(d *Denied) bool {
	var has uint64 // on the device, with the user's runs
	for i := range m.Jobs {
		j := &m.Jobs[i]
		if uid, is := job.PolicyUser(j.Path); !is || uid != d.UID || j.State == Ended {
			continue
		}
		for n := range j.Devices {
			if on := &j.Devices[n]; on.Limited && on.Device == d.Device {
				has += min(on.Limit, ^has)
			}
		}
	}
	return d.Asked > 0 && has >= d.Asked
}

// DeniedCount returns how many rations the policy refused to the users that are chosen, since boot.
func DeniedCount(all []Denied, chosen func(d *Denied) bool) (n uint64) {
	latest := map[int]uint64{} // the count of a user's last one has all of the user
	for i := range all {
		if d := &all[i]; chosen(d) {
			latest[d.UID] = max(latest[d.UID], d.Count)
		}
	}
	for _, count := range latest {
		n += count
	}
	return n
}

// deniedAges returns when the next refusal stops being recent, or the zero time.
func deniedAges(all []Denied, now time.Time) (at time.Time) {
	for _, d := range all {
		if end := d.Time.Add(deniedRecent + 1); end.After(now) && (at.IsZero() || end.Before(at)) {
			at = end
		}
	}
	return at
}

// deniedFinding returns the finding of a user's latest refusal.
func deniedFinding(d *Denied) Finding {
	latest := *d
	latest.Earlier = 0 // the finding has no time to count from
	text, remedy := latest.sentence()
	f := Finding{Kind: PolicyRefused, Device: d.Device, Path: job.OfUserPath(d.UID), Text: text, Remedy: remedy}
	if d.Count > 1 {
		f.Text = fmt.Sprintf("%s; the latest of %s in ten minutes", f.Text, humanfmt.Count(int(d.Count)))
	}
	if job.AllUsers() {
		f.Remedy = d.Remedy()
	}
	return f
}

// Remedy says what root can do about a refusal.
func (d *Denied) Remedy() string {
	if d.Unknown {
		return "mend the policy's file, or the groups of this machine, and run ration policy apply"
	}
	return "give users smaller rations, or allow overbook, in the policy's file"
}
