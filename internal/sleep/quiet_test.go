package sleep

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ration/check/expect"
	"ration/check/observer"
	"ration/internal/region"
)

// A job does not fall asleep while a thread changes an account.
func TestQuiet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	r, err := region.Open(path, region.Options{})
	expect.OK(t, err)
	defer r.Close()
	slot, err := r.Claim("allocates")
	expect.OK(t, err)
	defer func() { _ = slot.Leave() }()
	s := &sleeper{r: r}
	all, err := r.Sleepers()
	expect.OK(t, err)
	expect.Must(t, len(all) == 1, "processes", len(all))

	addTurns(t, path, all[0].Slot, 1)
	err = s.putAside(0)
	expect.True(t, err != nil && strings.Contains(err.Error(), "in the middle of an allocation"), err)
	addTurns(t, path, all[0].Slot, -1)
	err = s.putAside(0)
	expect.True(t, err != nil && strings.Contains(err.Error(), "holds no device memory"), err)
}

// addTurns adds to the number of threads of a slot that are changing an account.
func addTurns(t *testing.T, path string, slot, n int) {
	at := observer.Offset("Slots", slot, "Turns")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	expect.OK(t, err)
	defer f.Close()
	var word [8]byte
	_, err = f.ReadAt(word[:], at)
	expect.OK(t, err)
	binary.LittleEndian.PutUint64(word[:], binary.LittleEndian.Uint64(word[:])+uint64(n))
	_, err = f.WriteAt(word[:], at)
	expect.OK(t, err)
}
