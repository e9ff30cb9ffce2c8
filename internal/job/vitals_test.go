package job

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/expect"
)

// A reader notices what the process that watches a job writes about its rest.
func TestVitalsShowRest(t *testing.T) {
	folder := t.TempDir()
	rest, err := WatchRest(folder)
	expect.OK(t, err)
	defer rest.Close()
	dir, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY, 0)
	expect.OK(t, err)
	defer unix.Close(dir)
	v := OpenVitals(dir, RegionName)
	defer v.Close()
	look := func(before Vital) Vital {
		out, there := v.Look(before)
		expect.Must(t, there)
		return out
	}
	before := look(Vital{})
	expect.True(t, look(before) == before)
	expect.OK(t, rest.Write(Rest{After: time.Minute, Cannot: "it works"}))
	expect.True(t, look(before) != before)
}
