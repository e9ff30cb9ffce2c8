package region

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"ration/check/expect"
	"ration/internal/abi"
)

// patch is a list of patches for applyPatches.
func patch(pairs ...uint64) (b []byte) {
	for i := 0; i < len(pairs); i += 2 {
		b = binary.LittleEndian.AppendUint32(b, uint32(pairs[i]))
		b = binary.LittleEndian.AppendUint64(b, pairs[i+1])
	}
	return b
}

// applyPatches writes words into a region's file: four bytes of place and eight of value
// each.
func applyPatches(t *testing.T, file *os.File, data []byte) {
	t.Helper()
	for len(data) >= 12 {
		_, err := file.WriteAt(data[4:12], int64(binary.LittleEndian.Uint32(data))%regionSize&^7)
		must(t, err)
		data = data[12:]
	}
}

// Whatever a file holds, working with it ends, and ends without a crash. data is
// a list of patches, four bytes of place and eight of value each, to a good
// region with one living process in it.
func FuzzRegionBytes(f *testing.F) {
	const status, accounts = 12288, 184320
	f.Add([]byte{})
	f.Add(patch(0, 0))
	f.Add(patch(24, 1))
	f.Add(patch(72, 1<<63))                                                  // High
	f.Add(patch(8192, ^uint64(0)))                                           // the word
	f.Add(patch(status+8, 2, accounts+192+112, 77))                          // a dead slot that holds what was never granted
	f.Add(patch(status+8, 2, accounts+192+104, uint64(abi.MakePend(3, -5)))) // and one that announces a return
	f.Add(patch(accounts, 3, accounts+192, 1))                               // turns that no process has
	f.Add(patch(128, ^uint64(0)))                                            // the ring's next ticket
	f.Add(patch(3330048, 0))                                                 // the tail

	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "region")
		r, err := Open(path, Options{Limits: limited(10 * MiB)})
		must(t, err)
		s := claim(t, r)
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		defer file.Close()
		applyPatches(t, file, data)
		_, _ = r.Holdings(0, nil)
		_, _ = r.Processes()
		_, _ = r.Refusals()
		_, _ = r.Limit(0)
		_ = s.Charge(0, abi.Data, MiB)
		_ = s.Charge(0, abi.Data, 20*MiB)
		_, _ = r.Reap()
		_ = s.Return(0, abi.Data, MiB)
		if v, err := OpenReadOnly(path); err == nil {
			_, _ = v.Holdings(0, nil)
			_ = v.Close()
		}
		_ = r.Close()
		if again, err := Open(path, Options{}); err == nil {
			_, _ = again.Claim("again")
			_ = again.Close()
		}
	})
}

// Whatever a file holds, a reader that is no member gets a copy, or an error, and what it
// makes of a copy is within bounds. size is what the file is cut to, if it is less.
func FuzzCopy(f *testing.F) {
	const status, slots, refusals, deaths, accounts = 12288, 20480, 151552, 176128, 184320
	f.Add([]byte{}, uint32(regionSize))
	f.Add([]byte{}, uint32(4096))
	f.Add(patch(8, 9), uint32(regionSize))                                                    // another version
	f.Add(patch(72, ^uint64(0), status+16, 2, status+8*1023, 2), uint32(regionSize))          // slots of no process, and all are looked at
	f.Add(patch(128, ^uint64(0), 136, 1<<63), uint32(regionSize))                             // the rings' next tickets
	f.Add(patch(128, 5, refusals, 2, refusals+8, ^uint64(0)), uint32(regionSize))             // a refusal
	f.Add(patch(136, 1, deaths, 2), uint32(regionSize))                                       // a death
	f.Add(patch(status, 2, slots+64, 0x1b5d303b0a0d9b7f), uint32(regionSize))                 // a name
	f.Add(patch(8192, ^uint64(0), accounts+112, ^uint64(0), accounts, 1), uint32(regionSize)) // more than there can be
	f.Fuzz(func(t *testing.T, data []byte, size uint32) {
		path := filepath.Join(t.TempDir(), "region")
		r, err := Open(path, Options{Limits: limited(10 * MiB)})
		must(t, err)
		s := claim(t, r)
		must(t, s.Charge(0, abi.Data, MiB))
		defer r.Close()
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		defer file.Close()
		applyPatches(t, file, data)
		defer func() { must(t, file.Truncate(regionSize)) }() // before the mapping is left
		must(t, file.Truncate(min(int64(size), regionSize)))
		v, err := OpenReadOnly(path)
		if err != nil {
			return
		}
		defer v.Close()
		processes, err := v.Processes()
		if err != nil {
			return
		}
		for _, p := range processes {
			expect.Must(t, p.Slot >= 0 && p.Slot < abi.Slots && !strings.ContainsFunc(p.Name, func(c rune) bool { return !unicode.IsPrint(c) }),
				p)
		}
		for d := range abi.Devices {
			_, _ = v.RefreshDevice(d)
			held, _ := v.Holdings(d, nil)
			expect.Must(t, len(held) <= abi.Slots, len(held), "holdings")
			_, _, _ = v.Usage(d)
			_, _ = v.Limit(d)
			_, _ = v.Total(d)
			_, _ = v.Driver(d, 0)
		}
		f, _ := v.Refusals()
		expect.Must(t, len(f) <= abi.Refusals, len(f), "refusals")
		d, _ := v.Deaths()
		expect.Must(t, len(d) <= abi.Deaths, len(d), "deaths")
		_, _ = v.Counters()
	})
}

// Whatever an operator's file holds, it is read or refused, and what was read can be
// changed.
func FuzzOperatorLimits(f *testing.F) {
	page := func(change func(*abi.Limits)) []byte {
		l := abi.Limits{Magic: abi.LimitsMagic, Version: abi.Version, Size: uint64(limitsSize)}
		change(&l)
		return append([]byte(nil), bytesOf(&l)...)
	}
	f.Add([]byte{})
	f.Add(page(func(*abi.Limits) {}))
	f.Add(page(func(*abi.Limits) {})[:limitsSize-1])
	f.Add(page(func(l *abi.Limits) { l.Version++ }))
	f.Add(page(func(l *abi.Limits) { l.Device[3].Memory, l.Device[3].Total = ^uint64(0), 1 }))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "region")
		must(t, os.WriteFile(path+LimitsSuffix, data, 0o644))
		must(t, os.WriteFile(path, nil, 0o666))
		l, err := OpenOperatorLimits(path)
		if err != nil {
			return
		}
		_, err = l.Limit(3)
		must(t, err)
		must(t, l.SetLimit(3, abi.MakeLimit(MiB)))
		again, err := OpenOperatorLimits(path)
		must(t, err)
		got, _ := again.Limit(3)
		expect.Equal(t, got, abi.MakeLimit(MiB), "the limit is", "after it was set")
	})
}

func FuzzListsLock(f *testing.F) {
	f.Add([]byte("pos:\t0\nlock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 20480 20480\n"), 4711, int64(20480))
	f.Add([]byte("lock:\t1: POSIX  ADVISORY  WRITE 4711 00:19:1042 0 EOF"), 4711, int64(0))
	f.Add([]byte("lock:\nlock:"), 0, int64(-1))
	f.Fuzz(func(t *testing.T, b []byte, pid int, at int64) {
		expect.True(t, !listsLock(b, pid, at) || bytes.Contains(b, strconv.AppendInt(nil, int64(pid), 10)), b, "lists process", pid)
	})
}

// However a list of mappings is cut into pieces, what is in it is found.
func FuzzMentions(f *testing.F) {
	f.Add([]byte("7f00-7f01 rw-s 00000000 00:19 1042  /run/ration/train/region\n"), []byte(" 00:19 1042 "), uint16(5))
	f.Add([]byte{}, []byte("x"), uint16(1))
	f.Fuzz(func(t *testing.T, maps, word []byte, piece uint16) {
		if len(word) == 0 || len(word) > maxPath || len(maps) > maxMaps {
			return
		}
		want := len(maps) == 0 || bytes.Contains(maps, word)
		expect.Equal(t, mentions(&pieces{maps, int(piece)%4096 + 1}, word), want)
	})
}

// pieces reads so many bytes at a time.
type pieces struct {
	left []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left[:min(p.size, len(p.left))])
	p.left = p.left[n:]
	return n, nil
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (init) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 42 1 2"))
	f.Add([]byte("1 (a) b) c) R 0"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseStat(b) })
}

func TestParseStat(t *testing.T) {
	for _, c := range []struct {
		stat string
		want process
	}{
		{"1 (a) b) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 42 1 2", process{start: 42}},
		{"1 (a) Z 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 42 1 2", process{start: 42, ended: true}},
		{"1 (a) Z 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 42 1 2", process{start: 42}},               // main returned, threads live
		{"1 (a) R 0 1 1 0 -1 4194564 1 2 3 4 5 6 7 8 20 0 1 0 42 1 2", process{start: 42, ending: true}}, // on its way out: the driver may still have its memory
	} {
		got, err := parseStat([]byte(c.stat))
		expect.True(t, got == c.want && err == nil, c.stat, got, err)
	}
}
