package agent

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/job"
	"ration/machine"
)

// told says which events an agent of this folder has logged and counted, so that the next one, which
// reads the same events from the regions, does not do so again. It is in a file beside the socket:
//
//	8 bytes      until: Unix nanoseconds of when the latest look with an event began
//	8 bytes each IDs of events after that time which this look saw nevertheless, as it takes a while
//
// All that happened until then was told, or is older than the first agent of all. The file is written
// after the events were told, by one write within one page, which a kill does not divide: an agent
// that is killed between the two has the next one tell those of one look again, and none is lost.
// It is no part of any job: without it, as after a boot, all that is known is told once.
//
// It is of the agent's loop.
type told struct {
	file  *os.File // nil where it cannot be had
	until int64    // of the agent before this one
	later map[uint64]bool
}

// maxLater bounds the IDs: a page has no more. A tenant can make thousands of events in one look.
const maxLater = 4096/8 - 1

// openTold reads what the agents before this one have told. Where the file cannot be had, it is as
// if there had been none.
func openTold(folder string, now time.Time) (*told, error) {
	t := &told{later: map[uint64]bool{}}
	f, err := os.OpenFile(filepath.Join(folder, job.AgentTold), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return t, fmt.Errorf("opening the list of told events: %w", err)
	}
	text := make([]byte, 8*(maxLater+1))
	n, err := f.ReadAt(text, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return t, errors.Join(fmt.Errorf("reading the list of told events: %w", err), f.Close())
	}
	t.file = f
	for at := 0; at+8 <= n; at += 8 {
		word := binary.LittleEndian.Uint64(text[at:])
		if at == 0 {
			t.until = min(int64(word), now.UnixNano()) // the clock may have been set back
		} else {
			t.later[word] = true
		}
	}
	return t, nil
}

// untold returns the events that no agent before this one has told.
func (t *told) untold(events []machine.Event) (out []machine.Event) {
	for i := range events {
		if e := &events[i]; e.Time > t.until && !t.later[eventHash(e)] {
			out = append(out, *e)
		}
	}
	return out
}

// save notes that the events of a look were told, which began at a time. Without events there is
// nothing to note: none has happened since the last one.
func (t *told) save(events []machine.Event, began time.Time) error {
	if t.file == nil || len(events) == 0 {
		return nil
	}
	text := binary.LittleEndian.AppendUint64(nil, uint64(began.UnixNano()))
	for i := range events {
		if e := &events[i]; e.Time > began.UnixNano() && len(text) < 8*(maxLater+1) {
			text = binary.LittleEndian.AppendUint64(text, eventHash(e))
		}
	}
	_, err := t.file.WriteAt(text, 0)
	if err == nil { // IDs beyond, where it is killed before this, are of events that were told
		err = t.file.Truncate(int64(len(text)))
	}
	if err != nil {
		return fmt.Errorf("writing the list of told events: %w", err)
	}
	return nil
}

func (t *told) close() {
	if t.file != nil {
		_ = t.file.Close()
	}
}

// eventHash names an event in eight bytes, the same for all agents.
func eventHash(e *machine.Event) uint64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v", e.ID()))
	return binary.LittleEndian.Uint64(sum[:])
}
