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

// told is what the agents of this folder have told, that is logged and counted, so that the next one,
// which reads the same events from the regions, does not do so again (docs/protocols.md, section 15).
//
// What its file says was told, was. An event is told first and remembered then, each line of the log
// by itself: an agent that is killed in between has the next one write that one line again, and none
// is lost. No clock decides anything: an event is known by its name, not by its time, as what
// happened before can be seen after what happened later.
//
// The file is beside the socket, a line of JSON for each fact. A line is whole or does not count, and
// what is not a line of ours does not either. It is written to its end, and now and then anew beside
// it and renamed. Only the agent with the lock of the folder writes it. Where it cannot be written,
// all that it lacks is written as soon as it can be again. It is no part of any job: without it, as
// after a boot, all that is known is told once.
//
// It is of the agent's loop.
type told struct {
	path  string   // empty: nothing is remembered
	file  *os.File // nil where it could not be had: the next save makes another
	torn  bool     // it may end with half a line
	lines []toldLine
	saved int            // how many of them are in the file
	known map[uint64]int // index into lines by key, of the latest
	size  int            // of the lines, as they are written
	most  int            // the size at which what need not be remembered is left out

	// ran are jobs that ran when an agent before this one told of their start, and whose end none has
	// told. This one has not seen them yet.
	ran []machine.Job
}

// toldLine is a fact: that an event was told, or how many refusals of a job were counted.
type toldLine struct {
	Key     uint64  `json:"key"`
	UID     int     `json:"uid"`
	Ran     *ranJob `json:"ran,omitempty"`     // of a start: the job, if it had not ended then
	Counted uint64  `json:"counted,omitempty"` // of refusals
	Seen    uint64  `json:"seen,omitempty"`    // of which so many were seen one by one
}

// ranJob is what is needed to tell of a job's end.
type ranJob struct {
	Name    string    `json:"name,omitempty"`
	Path    string    `json:"path"`
	Owner   string    `json:"owner,omitempty"`
	Created time.Time `json:"created_at,omitzero"`
}

const (
	// maxToldOfUser is of how many events of one user's jobs it is remembered that they were told: more
	// than regions can show at a time, which are 2064 jobs and 2048 refusals and deaths.
	maxToldOfUser = 8192
	// maxTold bounds what is read, if something else has filled the file.
	maxTold = 64 << 20
)

// minTold is a size of the file up to which nothing is left out. Tests set it.
var minTold = 256 << 10

// atStep is called before each step that a kill can come before. Tests set it.
var atStep = func(step string) {}

// openTold reads what the agents before this one have told. Where that cannot be had, it is as
// if there had been none.
func openTold(folder string) (*told, error) {
	t := &told{known: map[uint64]int{}, most: minTold}
	if folder == "" {
		return t, nil
	}
	t.path = filepath.Join(folder, job.AgentTold)
	f, err := os.OpenFile(t.path, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return t, fmt.Errorf("opening the list of told events: %w", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(f, maxTold))
	}
	if err != nil {
		return t, errors.Join(fmt.Errorf("reading the list of told events: %s: %w", t.path, err), f.Close())
	}
	t.file, t.torn = f, len(text) > 0 && text[len(text)-1] != '\n'
	for line := range bytes.Lines(text) {
		var fact toldLine
		if json.Unmarshal(line, &fact) == nil && fact.Key != 0 {
			t.put(fact)
		}
	}
	t.saved, t.size = len(t.lines), max(t.size, len(text))
	for key := range t.running() {
		was := t.lines[t.known[key]]
		t.ran = append(t.ran, machine.Job{Name: was.Ran.Name, Path: was.Ran.Path, Owner: was.Ran.Owner, UID: was.UID, Created: was.Ran.Created, State: machine.Running})
	}
	return t, nil
}

// put adds a fact, which is remembered from the next save on.
func (t *told) put(fact toldLine) {
	if t.path == "" {
		return
	}
	t.known[fact.Key] = len(t.lines)
	t.lines = append(t.lines, fact)
	t.size += len(fact.text())
}

func (l *toldLine) text() []byte {
	text, _ := json.Marshal(l) // numbers and strings
	return append(text, '\n')
}

// running returns the keys of starts of jobs whose end was not told.
func (t *told) running() map[uint64]bool {
	out := map[uint64]bool{}
	for key, i := range t.known {
		if was := t.lines[i].Ran; was != nil {
			end := machine.Event{Kind: machine.JobEnded, Path: was.Path, Created: was.Created}
			if _, ended := t.known[eventKey(&end)]; !ended {
				out[key] = true
			}
		}
	}
	return out
}

// ends returns the ends of jobs that ran when another agent told of their start, and do not any more.
// Nothing else says that they have ended, where they have no launcher that saw it. A look that does
// not show all there is says nothing of those that it lacks.
func (t *told) ends(m *machine.Machine, now time.Time) (out []machine.Event) {
	if len(t.ran) == 0 {
		return nil
	}
	partial := slices.ContainsFunc(m.Findings, func(f machine.Finding) bool { return f.Kind == machine.Unanswering })
	at := map[string]*machine.Job{}
	for i := range m.Jobs {
		at[m.Jobs[i].Path] = &m.Jobs[i]
	}
	var before machine.Machine
	t.ran = slices.DeleteFunc(t.ran, func(was machine.Job) bool {
		now := at[was.Path]
		if now == nil && partial || now != nil && now.Error != "" {
			return false
		}
		before.Jobs = append(before.Jobs, was)
		return true
	})
	for _, e := range machine.Events(&before, m, now) {
		if e.Kind == machine.JobEnded {
			out = append(out, e)
		}
	}
	return out
}

// untold returns the events that no agent has told.
func (t *told) untold(events []machine.Event) (out []machine.Event) {
	for i := range events {
		if _, is := t.known[eventKey(&events[i])]; !is {
			out = append(out, events[i])
		}
	}
	return out
}

// factOf returns the fact that an event was told, of a job that may not be there any more.
func factOf(e *machine.Event, j *machine.Job) toldLine {
	fact := toldLine{Key: eventKey(e), UID: e.UID}
	if e.Kind == machine.JobStarted && j != nil && j.State != machine.Ended {
		fact.Ran = &ranJob{Name: e.Job, Path: e.Path, Owner: e.Owner, Created: e.Created}
	}
	return fact
}

// count returns how many refusals of a job are to be counted, of which some were seen now and the
// others, of which the region only has the number, were not; and the fact that they were. Each agent
// counts on from the one before. The number can lag behind what is seen, or be ahead of it: the greater
// is the true one.
func (t *told) count(j *machine.Job, seen uint64) (n uint64, fact toldLine) {
	fact = toldLine{Key: jobKey("refusals", j.ID()), UID: j.UID}
	if i, is := t.known[fact.Key]; is {
		fact = t.lines[i]
	}
	before := fact.Counted
	fact.Seen += seen
	fact.Counted = max(before, fact.Seen, j.Refused())
	return fact.Counted - before, fact
}

// save writes what was added to the file. m is the machine as of the latest look.
func (t *told) save(m *machine.Machine) (err error) {
	if t.path == "" || t.saved == len(t.lines) {
		return nil
	}
	var st unix.Stat_t
	switch {
	case t.size > t.most:
		t.trim(m)
		err = t.rewrite()
	case t.file == nil || unix.Fstat(int(t.file.Fd()), &st) != nil || st.Nlink == 0: // it was removed
		err = t.rewrite()
	default:
		err = t.append()
	}
	if err != nil {
		return fmt.Errorf("writing the list of told events: %w", err)
	}
	return nil
}

// append writes what is not in the file to its end.
func (t *told) append() error {
	var text []byte
	if t.torn {
		text = append(text, '\n') // half a line stays one
	}
	for i := range t.lines[t.saved:] {
		text = append(text, t.lines[t.saved+i].text()...)
	}
	atStep("append")
	if _, err := t.file.Write(text); err != nil {
		t.torn = true
		return err
	}
	t.saved, t.torn = len(t.lines), false
	atStep("appended")
	return nil
}

// rewrite writes the file anew, and puts it in the place of whatever is there.
func (t *told) rewrite() (err error) {
	beside := t.path + job.AgentToldNew
	_ = os.Remove(beside)
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	var text []byte
	for i := range t.lines {
		text = append(text, t.lines[i].text()...)
	}
	atStep("write anew")
	if _, err = f.Write(text); err == nil {
		atStep("rename")
		err = os.Rename(beside, t.path)
	}
	if err != nil {
		return errors.Join(err, f.Close(), os.Remove(beside))
	}
	t.close()
	t.file, t.torn, t.saved = f, false, len(t.lines)
	atStep("renamed")
	return nil
}

// trim leaves out what need not be remembered: of each user all but the latest, and before these what
// regions still show, as the next agent will read that.
func (t *told) trim(m *machine.Machine) {
	keep := t.running()
	events := machine.Events(&machine.Machine{}, m, time.Time{})
	for i := range events {
		keep[eventKey(&events[i])] = true
	}
	for i := range m.Jobs {
		keep[jobKey("refusals", m.Jobs[i].ID())] = true
	}
	room := map[int]int{} // how many of a user are kept, with those whom it was lent
	for key := range keep {
		if i, is := t.known[key]; is {
			room[accountOf(t.lines[i].UID)]++
		}
	}
	var kept []toldLine
	for i := len(t.lines) - 1; i >= 0; i-- { // the latest first
		l := t.lines[i]
		if t.known[l.Key] != i {
			continue // there is a later one
		}
		if !keep[l.Key] {
			account := accountOf(l.UID)
			if room[account]++; room[account] > maxToldOfUser {
				continue
			}
		}
		kept = append(kept, l)
	}
	slices.Reverse(kept)
	t.lines, t.known, t.size, t.saved = nil, map[uint64]int{}, 0, 0
	for _, l := range kept {
		t.put(l)
	}
	t.most = max(minTold, 2*t.size)
}

func (t *told) close() {
	if t.file != nil {
		_ = t.file.Close()
		t.file = nil
	}
}

// eventKey names an event in eight bytes, the same for all agents.
func eventKey(e *machine.Event) uint64 {
	id := e.ID()
	return jobKey(id.Kind, id.Job, id.Time.UnixNano(), int64(id.Slot), int64(id.PID))
}

func jobKey(kind string, id machine.JobID, numbers ...int64) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q %d %d", kind, id.Path, id.Created.UnixNano(), numbers))
	return max(1, binary.LittleEndian.Uint64(sum[:]))
}
