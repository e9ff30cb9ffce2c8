package launch

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/region"
)

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int
		all  []Candidate
		want region.Place
	}{
		{"the emptiest", 1, []Candidate{{Device: 0, Free: 10}, {Device: 1, Free: 30}, {Device: 2, Free: 20}}, region.PlaceAt(1)},
		{"the lowest of equals", 1, []Candidate{{Device: 2, Free: 30}, {Device: 1, Free: 30}, {Device: 3, Free: 9}}, region.PlaceAt(1)},
		{"one where it fits", 1, []Candidate{{Device: 0, Free: 30, Full: true}, {Device: 1, Free: 3}}, region.PlaceAt(1)},
		{"one where nobody loses", 1, []Candidate{{Device: 0, Free: 30, Lose: 1}, {Device: 1, Free: 3}}, region.PlaceAt(1)},
		{"one where the fewest lose", 1, []Candidate{{Device: 0, Free: 30, Lose: 2}, {Device: 1, Free: 3, Lose: 1}}, region.PlaceAt(1)},
		{"losing is better than full", 1, []Candidate{{Device: 0, Free: 30, Full: true}, {Device: 1, Free: 3, Lose: 9}}, region.PlaceAt(1)},
		{"two", 2, []Candidate{{Device: 0, Free: 10}, {Device: 1, Free: 30}, {Device: 2, Free: 20}}, region.PlaceAt(1, 2)},
		{"fewer than wanted", 2, []Candidate{{Device: 3, Free: 10}}, region.PlaceAt(3)},
		{"overbooked", 1, []Candidate{{Device: 0, Free: -2}, {Device: 1, Free: -1}}, region.PlaceAt(1)},
		{"none", 1, nil, 0},
	} {
		at, _ := Choose(c.n, c.all, "in no ration")
		expect.Equal(t, at, c.want, c.name)
	}
	_, why := Choose(1, []Candidate{{Device: 0, Free: 3 << 30}, {Device: 1, Free: 8 << 30}}, "in no ration")
	expect.Equal(t, why, "GPU 1 had 8 GiB in no ration (GPU 0 had 3 GiB)")
}

func TestDevicesIn(t *testing.T) {
	devices := []gpu.Device{{Index: 0, UUID: "GPU-aaaa1111"}, {Index: 1, UUID: "GPU-aabb2222"}}
	for list, want := range map[string]region.Place{
		"0": region.PlaceAt(0), " 1 ,0": region.PlaceAt(0, 1), "1": region.PlaceAt(1), "": 0, "2": 0, "-1": 0, "1,7,0": region.PlaceAt(1),
		"GPU-AABB": region.PlaceAt(1), "GPU-": 0, "MIG-1": 0, "01": region.PlaceAt(1), "+1": 0, "256": 0,
	} {
		expect.Equal(t, DevicesIn(list, devices, region.Limits{}.Visible()), want, list)
	}
	for list, want := range map[string]region.Place{"0": region.PlaceAt(1), "1": 0, "GPU-aabb": region.PlaceAt(1), "GPU-aaaa,0": 0} {
		expect.Equal(t, DevicesIn(list, devices, region.PlaceAt(1)), want, list, "of the second")
	}
}

// While one launcher chooses, no other one does: it would choose the same device.
func TestOneChoosesAtATime(t *testing.T) {
	t.Setenv(job.EnvFolder, t.TempDir())
	lock, err := lockPlacing()
	expect.OK(t, err)
	other, err := os.Open(lock.Name())
	expect.OK(t, err)
	defer other.Close()
	expect.Equal(t, unix.Flock(int(other.Fd()), unix.LOCK_SH|unix.LOCK_NB), error(unix.EWOULDBLOCK), "beside a launcher that chooses")
	expect.OK(t, lock.Close())
	expect.OK(t, unix.Flock(int(other.Fd()), unix.LOCK_SH|unix.LOCK_NB), "after it")
}
