package region

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/safepath"
)

// Pulse detects whether a region has changed, for a process that checks it repeatedly. It reads a
// few words: every change of the granted memory, a limit, a slot or a ring changes one of them. It
// also reads which processes hold the locks of its slots. It does not read the TimeParts, which
// change with the used device time and are as large as everything else. It does not tell what has
// changed. A job cannot deceive it for longer than it can deceive a reader.
//
// It keeps a descriptor of the file, takes no lock, and writes nothing.
type Pulse struct {
	file   *file
	limits int // descriptor of the limits beside the region; -1 if there are none
	path   string
}

// PulseSize is the size of the buffer that Sum needs.
const PulseSize = int(slotsOffset + limitsSize)

var pulseSeed = maphash.MakeSeed()

// OpenPulseAt opens a file in a folder, as OpenReadOnlyAt does.
func OpenPulseAt(dir int, name, path string) (*Pulse, error) {
	f, err := openFileAt(dir, name, path)
	if err != nil {
		return nil, err
	}
	p := &Pulse{file: f, limits: -1, path: path}
	p.FindLimits(dir, name)
	return p, nil
}

// FindLimits opens the limits beside the region, unless they are open: they may have been made after the region was
// opened. The arguments are those of OpenPulseAt. The next Sum differs then.
func (p *Pulse) FindLimits(dir int, name string) {
	if p.limits >= 0 {
		return
	}
	if fd, err := safepath.OpenAt(dir, name+LimitsSuffix, unix.O_RDONLY, 0); err == nil {
		p.limits = fd
	}
}

// maxPulseLocks bounds the slots that are queried. With more living processes the whole job is
// read, which is bounded by time.
const maxPulseLocks = 256

// Sum returns a number that is unchanged only if nothing has changed. ok is false if that is
// unknown: the file is not a readable region, or has very many processes. unlocked is the number of
// processes that hold a slot but not its lock: they have ended or are ending, and neither words nor
// locks will change when they have ended. buf is overwritten.
func (p *Pulse) Sum(buf []byte) (sum uint64, unlocked int, ok bool, err error) {
	fd, err := p.file.descriptor()
	if err != nil {
		return 0, 0, false, fmt.Errorf("reading %s: %w", p.path, err)
	}
	words := buf[:slotsOffset]
	var h maphash.Hash
	h.SetSeed(pulseSeed)
	add := func(from, to int64) bool {
		n := 0
		if n, err = unix.Pread(fd, words[from:to], from); err != nil || int64(n) != to-from {
			return false
		}
		_, _ = h.Write(words[from:to])
		return true
	}
	high := int64(0)
	if ok = add(0, computeOffset); ok {
		high = int64(min(binary.NativeEndian.Uint64(words[highWaterOffset:]), abi.Slots))
		ok = add(statusOffset, statusOffset+8*high)
	}
	for d := int64(0); ok && d < abi.Devices; d++ {
		if at := devicesOffset + d*deviceSize; !allZero(words[at : at+deviceSize]) { // memory of it was granted
			ok = add(computeWords(d))
		}
	}
	if err != nil {
		return 0, 0, false, fmt.Errorf("reading %s: %w", p.path, err)
	}
	if !ok {
		return 0, 0, false, nil
	}
	if p.limits >= 0 {
		page := buf[slotsOffset:PulseSize]
		if n, err := unix.Pread(p.limits, page, 0); err != nil || n != len(page) {
			return 0, 0, false, err
		}
		_, _ = h.Write(page)
	}
	asked := 0
	for slot := range int(high) {
		if !abi.Status(binary.NativeEndian.Uint64(words[statusOffset+int64(slot)*8:])).Holds() {
			continue
		}
		if asked++; asked > maxPulseLocks {
			return 0, 0, false, nil
		}
		locked, pid := askedOf(fd, slot)
		if !locked {
			unlocked++
		}
		_, _ = h.Write([]byte{byte(slot), byte(slot >> 8), byte(pid), byte(pid >> 8), byte(pid >> 16), byte(pid >> 24)})
	}
	return h.Sum64(), unlocked, true, nil
}

func allZero(words []byte) bool {
	for _, b := range words {
		if b != 0 {
			return false
		}
	}
	return true
}

// Locked reports whether another process has any of the region's bytes locked.
func (p *Pulse) Locked() bool { return p.file.locked() }

// Created returns when the region was created, in Unix nanoseconds; 0 if unknown.
func (p *Pulse) Created() int64 {
	var h abi.Header
	if n, err := unix.Pread(p.file.number(), bytesOf(&h), 0); err != nil || n < 64 || h.Magic != abi.Magic {
		return 0
	}
	return int64(h.Created)
}

// Close closes the descriptor.
func (p *Pulse) Close() {
	p.file.close()
	if p.limits >= 0 {
		_ = unix.Close(p.limits)
	}
}
