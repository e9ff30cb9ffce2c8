// Package usage keeps accounts of who used the GPUs, and how much: for each job and device the memory
// held and reserved over time, the device's time, the time asleep, and refusals. The agent measures and writes them;
// `ration report` reads them. PROTOCOL.md says what a crash can lose, and what a user can write.
package usage

import (
	"encoding/binary"
	"time"
)

// Subject is what an account is kept for: a job on one device.
type Subject struct {
	UID     int    `json:"uid"`
	Owner   string `json:"owner"`
	Job     string `json:"job,omitempty"`     // OtherJobs for all that have no account of their own
	Project string `json:"project,omitempty"` // of a job in Kubernetes, its namespace; otherwise the label that the user chose
	Device  string `json:"device"`            // UUID, or the job's number if that is unknown
}

// OtherJobs is the job of an account that a user's jobs share when there are too many of them.
const OtherJobs = "(other jobs)"

// UnknownDevice is the device of an account for memory that the driver counts for a job on a device that the job does not
// name, or not by a name that the driver knows.
const UnknownDevice = "(unknown)"

// UnknownUser is the user in reports for accounts without an owner. No user can have that name.
const UnknownUser = "(unknown)"

// Sums are the contents of an account for one period. Memory is in byte-seconds: one byte that is held
// for one second.
type Sums struct {
	Held     uint64 // byte-seconds held
	Reserved uint64 // byte-seconds of the limit, while the job had not ended
	Idle     uint64 // byte-seconds held in steps in which the job did no work on the device
	Error    uint64 // by how much Held may be wrong: memory that changed between two looks, or that the driver does not confirm
	Measured uint64 // nanoseconds of the device's time, as the library measured them
	Sampled  uint64 // nanoseconds of the device's time, from the driver's samples
	Peak     uint64 // bytes
	Refused  uint64
	Died     uint64
	Shared   uint64 // the part of Measured that is only an upper bound, because turns of others may be in it
	Asleep   uint64 // nanoseconds for which the job slept, with memory of the device put aside
}

// add adds another account, or the account of another period.
func (s *Sums) add(more Sums) {
	s.Held, s.Reserved, s.Idle, s.Error = saturate(s.Held, more.Held), saturate(s.Reserved, more.Reserved), saturate(s.Idle, more.Idle), saturate(s.Error, more.Error)
	s.Measured, s.Sampled = saturate(s.Measured, more.Measured), saturate(s.Sampled, more.Sampled)
	s.Peak = max(s.Peak, more.Peak)
	s.Refused, s.Died, s.Shared, s.Asleep = saturate(s.Refused, more.Refused), saturate(s.Died, more.Died), saturate(s.Shared, more.Shared), saturate(s.Asleep, more.Asleep)
}

// Plus returns the sums with others added.
func (s Sums) Plus(more Sums) Sums {
	s.add(more)
	return s
}

const (
	sumCount = 11
	maxSums  = 64 // that a later version may have
)

// fields returns the sums in the order in which they are stored. New ones are appended.
func (s *Sums) fields() [sumCount]*uint64 {
	return [...]*uint64{&s.Held, &s.Reserved, &s.Idle, &s.Error, &s.Measured, &s.Sampled, &s.Peak, &s.Refused, &s.Died, &s.Shared, &s.Asleep}
}

// saturate returns a+b, or the largest number.
func saturate(a, b uint64) uint64 { return a + min(b, ^a) }

// encode returns the sums as stored.
func (s *Sums) encode() []byte {
	out := make([]byte, 0, 32)
	for _, field := range s.fields() {
		out = binary.AppendUvarint(out, *field)
	}
	return out
}

// decode reads stored sums. Those that an earlier version did not know are 0; those that a later version
// has added are ignored.
func decode(text []byte) (s Sums, err error) {
	for _, field := range s.fields() {
		if len(text) == 0 {
			break
		}
		value, n := binary.Uvarint(text)
		if n <= 0 {
			return s, ErrBroken
		}
		*field, text = value, text[n:]
	}
	return s, nil
}

// Period is what was measured in one step.
type Period struct {
	At      time.Time     // its beginning
	Watched time.Duration // how much of it the agent has watched
	Sums    map[Subject]Sums
}
