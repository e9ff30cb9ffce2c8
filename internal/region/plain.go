package region

import "sync/atomic"

// PlainLock is a sequence lock as it is usually made: one writer, one copy. It is what
// the account's view is measured against (ration bench), and nothing else: a writer that
// is stopped or dies in the middle stops every reader.
type PlainLock struct {
	seq    uint64 // odd while a write is under way
	fields [4]uint64
	_      [3]uint64
}

// Write writes all fields.
func (l *PlainLock) Write(v uint64) {
	seq := l.seq
	// Release, each: a reader that sees a field also sees the odd sequence before it.
	storeRelease(&l.seq, seq+1)
	for i := range l.fields {
		storeRelease(&l.fields[i], v)
	}
	storeRelease(&l.seq, seq+2)
}

// Read reads all fields in one piece. retries counts the tries beyond the first, of which
// there are at most so many.
func (l *PlainLock) Read(most int) (fields [4]uint64, retries int) {
	for ; ; retries++ {
		seq := atomic.LoadUint64(&l.seq)
		for i := range fields {
			fields[i] = atomic.LoadUint64(&l.fields[i])
		}
		if seq%2 == 0 && atomic.LoadUint64(&l.seq) == seq || retries == most {
			return fields, retries
		}
	}
}
