//go:build cgo

package gpu

import (
	"path/filepath"
	"sync"
	"testing"

	"ration/check/expect"
)

// Goroutines open and close the driver at once. make race finds what they share.
func TestOpenAtOnce(t *testing.T) {
	path := fakeNVML(t)
	t.Setenv("FAKEGPU", "small")
	t.Setenv("FAKEGPU_STATE", filepath.Join(t.TempDir(), "gpu"))
	a, err := Open(path)
	expect.OK(t, err)
	b, err := Open(path)
	expect.OK(t, err)
	expect.True(t, a.lib == b.lib, "want one library of a path")
	a.Close()
	_, err = b.Free(0) // as before
	expect.OK(t, err)
	b.Close()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				d, err := Open(path)
				if err != nil || len(d.Devices) != 1 {
					t.Errorf("got %+v, %v", d, err)
					return
				}
				d.Close()
			}
		})
	}
	wg.Wait()
	expect.Equal(t, libraryOf(path).used, 0)
}
