package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/machine"
)

// journal lists the events that agents of this folder have logged and counted. The next agent reads
// the same events from the regions, and logs only those that are not in the journal (PROTOCOL.md).
//
// Every event in the journal file has been logged. An agent writes one line to the log, then enters
// the event into the file, and only then writes the next line. If it is killed in between, the next
// agent logs that one line again, and no event is lost. Events are compared by identity, not by
// time, because an older event can become visible after a newer one. So no clock matters.
//
// The file is beside the socket and has one line of JSON for each entry. An incomplete line does
// not count. New lines are appended; from time to time the whole file is written again beside the
// old one and renamed. Only the agent that holds the folder's lock writes it. Entries that could
// not be written are kept in memory, and written with the next save that succeeds. No job depends
// on the file. Without it, for example after a boot, all events in the regions are logged once
// more.
//
// Only the agent's loop uses a journal.
type journal struct {
	path    string   // empty if nothing is saved
	file    *os.File // nil if it could not be opened; the next save makes a new file
	torn    bool     // the file may end with an incomplete line
	entries []entry
	saved   int            // number of entries that are in the file
	known   map[uint64]int // index in entries of the latest entry with a key
	size    int            // bytes of the entries as text
	most    int            // size at which the journal is trimmed

	// orphans are jobs that ran when an earlier agent logged their start. The journal does not have
	// their end, and this agent has not seen them yet.
	orphans []machine.Job
	// waits are those that an earlier agent logged, whose end the journal does not have, and that this agent has not seen yet.
	waits []machine.Waiting
	// earlier are events of earlier agents that no region shows.
	earlier []machine.Event
}

// entry records that an event was logged, or how many refusals of a job were counted.
type entry struct {
	Key     uint64      `json:"key"`
	UID     int         `json:"uid"`
	Ran     *journalJob `json:"ran,omitempty"`     // for a start: the job, unless it had ended by then
	Counted uint64      `json:"counted,omitempty"` // number of refusals
	Seen    uint64      `json:"seen,omitempty"`    // how many of these refusals were seen as events
	// Event is the event itself, for a kind of which the regions show nothing, or only the latest.
	Event *machine.Event `json:"event,omitempty"`
}

// journalJob is the part of a job that the next agent needs to log the job's end.
type journalJob struct {
	Name    string    `json:"name,omitempty"`
	Path    string    `json:"path"`
	Owner   string    `json:"owner,omitempty"`
	Created time.Time `json:"created_at,omitzero"`
}

const (
	// maxEntriesOfUser bounds the entries for one user's jobs. It is more than the regions of a
	// user can show at a time: 2064 jobs, and 2048 refusals and deaths.
	maxEntriesOfUser = 8192
	// maxKept bounds the events themselves that are kept for one user's jobs: they are larger.
	maxKept = 256
	// maxJournal bounds how much of the file is read, in case another program has filled it.
	maxJournal = 64 << 20
)

// minJournal is the size up to which the file is not trimmed. Tests change it.
var minJournal = 256 << 10

// atStep is called before each step. Tests use it to kill the agent there.
var atStep = func(step string) {}

// openJournal reads the journal of a folder. On an error it returns an empty journal.
func openJournal(folder string) (*journal, error) {
	l := &journal{known: map[uint64]int{}, most: minJournal}
	if folder == "" {
		return l, nil
	}
	l.path = filepath.Join(folder, job.AgentJournal)
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return l, fmt.Errorf("opening the journal of events: %w", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(f, maxJournal))
	}
	if err != nil {
		return l, errors.Join(fmt.Errorf("reading the journal of events: %s: %w", l.path, err), f.Close())
	}
	l.file, l.torn = f, len(text) > 0 && text[len(text)-1] != '\n'
	for line := range bytes.Lines(text) {
		var e entry
		if json.Unmarshal(line, &e) == nil && e.Key != 0 {
			l.put(e)
		}
	}
	l.saved, l.size = len(l.entries), max(l.size, len(text))
	for i := range l.entries {
		if e := l.entries[i].Event; e != nil {
			l.earlier = append(l.earlier, *e)
		}
	}
	l.waits = waitingAfter(l.earlier)
	for key := range l.running() {
		was := l.entries[l.known[key]]
		l.orphans = append(l.orphans, machine.Job{Name: was.Ran.Name, Path: was.Ran.Path, Owner: was.Ran.Owner, UID: was.UID, Created: was.Ran.Created, State: machine.Running})
	}
	return l, nil
}

// put adds an entry. The next save writes it.
func (l *journal) put(e entry) {
	if l.path == "" {
		return
	}
	l.known[e.Key] = len(l.entries)
	l.entries = append(l.entries, e)
	l.size += len(e.text())
}

func (e *entry) text() []byte {
	text, _ := json.Marshal(e) // cannot fail: an entry has only numbers and strings
	return append(text, '\n')
}

// running returns the keys of the starts of jobs whose end was not logged.
func (l *journal) running() map[uint64]bool {
	out := map[uint64]bool{}
	for key, i := range l.known {
		if was := l.entries[i].Ran; was != nil {
			end := machine.Event{Kind: machine.JobEnded, Path: was.Path, Created: was.Created}
			if _, ended := l.known[eventKey(&end)]; !ended {
				out[key] = true
			}
		}
	}
	return out
}

// waitingAfter returns the waits that have begun and not ended after those events.
func waitingAfter(events []machine.Event) (out []machine.Waiting) {
	for _, e := range events {
		switch is := func(w machine.Waiting) bool { return w.Path == e.Path && w.Since.Equal(e.Waits.Since) }; {
		case e.Waits == nil:
		case e.Kind == machine.JobWaits:
			out = append(out, *e.Waits)
		default:
			out = slices.DeleteFunc(out, is)
		}
	}
	return out
}

// ends returns an event for each orphan that does not run any more. No region shows that end,
// unless a launcher saw it. A job that is missing from an incomplete scan may still run. It does the same for waits.
func (l *journal) ends(m *machine.Machine, now time.Time) (out []machine.Event) {
	if len(l.orphans) == 0 && len(l.waits) == 0 {
		return nil
	}
	partial := slices.ContainsFunc(m.Findings, func(f machine.Finding) bool { return f.Kind == machine.Unanswering })
	at := map[string]*machine.Job{}
	for i := range m.Jobs {
		at[m.Jobs[i].Path] = &m.Jobs[i]
	}
	var before machine.Machine
	l.orphans = slices.DeleteFunc(l.orphans, func(was machine.Job) bool {
		now := at[was.Path]
		if now == nil && partial || now != nil && now.Error != "" {
			return false
		}
		before.Jobs = append(before.Jobs, was)
		return true
	})
	if !partial {
		before.Waiting, l.waits = l.waits, nil
	}
	for _, e := range machine.Events(&before, m, now) {
		if e.Kind == machine.JobEnded || e.Kind == machine.JobAdmitted || e.Kind == machine.JobGaveUp {
			out = append(out, e)
		}
	}
	return out
}

// withEarlier returns the events of the first scan together with those that earlier agents have seen, oldest first. Those of
// jobs that are not there any more are left out, as what their regions had.
func (l *journal) withEarlier(first []machine.Event, m *machine.Machine) []machine.Event {
	if len(l.earlier) == 0 {
		return first
	}
	there := map[machine.JobID]bool{}
	for i := range m.Jobs {
		there[m.Jobs[i].ID()] = true
	}
	out := slices.Concat(slices.DeleteFunc(l.earlier, func(e machine.Event) bool { return e.Device == nil && e.Waits == nil && !there[e.JobID()] }), first)
	slices.SortStableFunc(out, func(a, b machine.Event) int { return a.Time.Compare(b.Time) })
	l.earlier = nil
	return out
}

// unlogged returns the events that are not in the journal.
func (l *journal) unlogged(events []machine.Event) (out []machine.Event) {
	for i := range events {
		if _, is := l.known[eventKey(&events[i])]; !is {
			out = append(out, events[i])
		}
	}
	return out
}

// entryOf returns the entry of an event. j is its job, or nil if the job was removed.
func entryOf(e *machine.Event, j *machine.Job) entry {
	out := entry{Key: eventKey(e), UID: e.UID}
	if e.Kind == machine.JobStarted && j != nil && j.State != machine.Ended {
		out.Ran = &journalJob{Name: e.Job, Path: e.Path, Owner: e.Owner, Created: e.Created}
	}
	switch e.Kind {
	case machine.JobSlept, machine.JobWoke, machine.JobIdle, machine.ProcessesStopped, machine.JobWaits, machine.JobAdmitted, machine.JobGaveUp,
		machine.GPUFailed, machine.GPUReturned:
		kept := *e
		kept.Machine, out.Event = nil, &kept
	}
	return out
}

// count returns how many refusals of a job the journal has not counted yet, and an entry with the
// new number. seen is how many refusals this scan saw as events. The region's own counter can be
// lower or higher than the number of events seen; the higher number is right.
func (l *journal) count(j *machine.Job, seen uint64) (n uint64, e entry) {
	e = entry{Key: jobKey("refusals", j.ID()), UID: j.UID}
	if i, is := l.known[e.Key]; is {
		e = l.entries[i]
	}
	before := e.Counted
	e.Seen += seen
	e.Counted = max(before, e.Seen, j.Refused())
	return e.Counted - before, e
}

// save writes new entries to the file. m is the machine as of the latest scan.
func (l *journal) save(m *machine.Machine) (err error) {
	if l.path == "" || l.saved == len(l.entries) {
		return nil
	}
	var st unix.Stat_t
	switch {
	case l.size > l.most:
		l.trim(m)
		err = l.rewrite()
	case l.file == nil || unix.Fstat(int(l.file.Fd()), &st) != nil || st.Nlink == 0: // the file was removed
		err = l.rewrite()
	default:
		err = l.append()
	}
	if err != nil {
		return fmt.Errorf("writing the journal of events: %w", err)
	}
	return nil
}

// append appends the new entries to the file.
func (l *journal) append() error {
	var text []byte
	if l.torn {
		text = append(text, '\n') // end the incomplete line
	}
	for i := range l.entries[l.saved:] {
		text = append(text, l.entries[l.saved+i].text()...)
	}
	atStep("append")
	if _, err := l.file.Write(text); err != nil {
		l.torn = true
		return err
	}
	l.saved, l.torn = len(l.entries), false
	atStep("appended")
	return nil
}

// rewrite writes a new file and renames it over the old one.
func (l *journal) rewrite() (err error) {
	beside := l.path + job.AgentJournalNew
	_ = os.Remove(beside)
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	var text []byte
	for i := range l.entries {
		text = append(text, l.entries[i].text()...)
	}
	atStep("write anew")
	if _, err = f.Write(text); err == nil {
		atStep("rename")
		err = os.Rename(beside, l.path)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(beside))
	}
	l.close()
	l.file, l.torn, l.saved = f, false, len(l.entries)
	atStep("renamed")
	return nil
}

// trim drops the oldest entries of each user. It keeps entries that the next agent needs: those of
// running jobs, and those of events that the regions still show.
func (l *journal) trim(m *machine.Machine) {
	keep := l.running()
	shown := machine.Events(&machine.Machine{}, m, time.Time{})
	for i := range shown {
		keep[eventKey(&shown[i])] = true
	}
	for i := range m.Jobs {
		keep[jobKey("refusals", m.Jobs[i].ID())] = true
	}
	room := map[int]int{} // number of entries to keep, by account
	for key := range keep {
		if i, is := l.known[key]; is {
			room[accountOf(l.entries[i].UID)]++
		}
	}
	events := map[int]int{} // by account: how many are kept
	var kept []entry
	for i := len(l.entries) - 1; i >= 0; i-- { // latest first
		e := l.entries[i]
		if l.known[e.Key] != i {
			continue // superseded by a later entry
		}
		if !keep[e.Key] {
			account := accountOf(e.UID)
			if room[account]++; room[account] > maxEntriesOfUser {
				continue
			}
		}
		if e.Event != nil {
			if account := accountOf(e.UID); events[account] >= maxKept {
				e.Event = nil
			} else {
				events[account]++
			}
		}
		kept = append(kept, e)
	}
	slices.Reverse(kept)
	l.entries, l.known, l.size, l.saved = nil, map[uint64]int{}, 0, 0
	for _, e := range kept {
		l.put(e)
	}
	l.most = max(minJournal, 2*l.size)
}

func (l *journal) close() {
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}

// eventKey returns a hash that identifies an event. It is the same in all agents.
func eventKey(e *machine.Event) uint64 {
	id := e.ID()
	return jobKey(id.Kind, id.Job, id.Time.UnixNano(), int64(id.Slot), int64(id.PID))
}

func jobKey(kind string, id machine.JobID, numbers ...int64) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q %d %d", kind, id.Path, id.Created.UnixNano(), numbers))
	return max(1, binary.LittleEndian.Uint64(sum[:]))
}
