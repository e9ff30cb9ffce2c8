package machine

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"unicode"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/region"
)

// Whatever a job's processes write into its region, what is read of it is JSON that can be
// decoded again and shown on a terminal. data is words, four bytes of place and eight of
// value each, that are written into a region with one living process.
func FuzzReadRegion(f *testing.F) {
	words := func(pairs ...uint64) (b []byte) {
		for i := 0; i < len(pairs); i += 2 {
			b = binary.LittleEndian.AppendUint32(b, uint32(pairs[i]))
			b = binary.LittleEndian.AppendUint64(b, pairs[i+1])
		}
		return b
	}
	at := func(field ...any) uint64 { return uint64(observer.Offset(field...)) }
	active := uint64(abi.MakeStatus(1, abi.SlotActive))
	f.Add([]byte{})
	f.Add(words(at("Status", 5), active, at("Header", "HighWater"), 6, at("Slots", 5, "PID"), ^uint64(0), at("Slots", 5, "Name"), 0x1b5b324a9b7f0a0d))
	f.Add(words(at("Devices", 3, "LedgerWord"), ^uint64(0), at("Devices", 4, "Peak"), ^uint64(0)))
	f.Add(words(at("Header", "RefusalNext"), 1, at("Header", "DeathNext"), ^uint64(0)))
	f.Add(words(at("Limits", "Device", 0, "Memory"), ^uint64(0), at("Limits", "Device", 1, "Total"), 1))
	f.Add(words(at("Header", "Created"), 1<<63, at("Header", "Counters"), ^uint64(0)))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "region")
		r, err := region.Open(path, region.Options{})
		expect.OK(t, err)
		defer r.Close()
		if _, err := r.Claim("member"); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		expect.OK(t, err)
		defer file.Close()
		for ; len(data) >= 12; data = data[12:] {
			if _, err := file.WriteAt(data[4:12], int64(binary.LittleEndian.Uint32(data))%region.FileSize&^7); err != nil {
				t.Fatal(err)
			}
		}
		j, _ := ReadJob(path)
		out, err := json.Marshal(j)
		expect.OK(t, err)
		expect.OK(t, json.Unmarshal(out, &Job{}), out)
		var texts []string
		for _, p := range j.Processes {
			texts = append(texts, p.Name, p.User)
		}
		for i := range j.Refusals {
			texts = append(texts, j.Refusals[i].Sentence(j.Processes))
		}
		for i := range j.Deaths {
			texts = append(texts, j.Deaths[i].Sentence())
		}
		GroupRefusals(j.Refusals)
		for _, text := range texts {
			for _, c := range text {
				expect.Must(t, unicode.IsPrint(c), text, "reaches the reader")
			}
		}
	})
}
