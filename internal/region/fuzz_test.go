package region

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"ration/internal/abi"
)

// Whatever a file holds, working with it ends, and ends without a crash. data is
// a list of patches, four bytes of place and eight of value each, to a good
// region with one living process in it.
func FuzzRegionBytes(f *testing.F) {
	patch := func(pairs ...uint64) (b []byte) {
		for i := 0; i < len(pairs); i += 2 {
			b = binary.LittleEndian.AppendUint32(b, uint32(pairs[i]))
			b = binary.LittleEndian.AppendUint64(b, pairs[i+1])
		}
		return b
	}
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
		for len(data) >= 12 {
			at := int64(binary.LittleEndian.Uint32(data)) % regionSize &^ 7
			_, err := file.WriteAt(data[4:12], at)
			must(t, err)
			data = data[12:]
		}
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
		{"1 (a) b) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 42 1 2", process{42, false}},
		{"1 (a) Z 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 42 1 2", process{42, true}},
		{"1 (a) Z 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 42 1 2", process{42, false}}, // main returned, threads live
		{"1 (a) R 0 1 1 0 -1 4194564 1 2 3 4 5 6 7 8 20 0 1 0 42 1 2", process{42, true}},  // on its way out
	} {
		if got, err := parseStat([]byte(c.stat)); got != c.want || err != nil {
			t.Errorf("%s: %+v, %v", c.stat, got, err)
		}
	}
}
