package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/limit"
	"ration/internal/region"
)

// A job with a number of devices is placed: it is on some of the machine's devices, and the others are
// hidden from it. Package policy places rations by the same rule, Choose.
//
// Launchers of one user choose one after the other. The lock is held from the choice until the region
// exists, so a launcher sees every choice that was made before its own. A launcher that dies drops the
// lock, and the lock of its job, which then counts no more.

// visibleDevices is CUDA's variable with the devices that a program sees.
const visibleDevices = "CUDA_VISIBLE_DEVICES"

// Booking is the sum of limits on each device: bytes of memory, and per cent of time.
type Booking struct{ Memory, Share [abi.Devices]uint64 }

// Add adds the limits of a job.
func (b *Booking) Add(l region.Limits) {
	for d := range abi.Devices {
		b.Memory[d] += l.Memory[d].Bytes()
		b.Share[d] += uint64(abi.Percent(l.Compute[d]))
	}
}

// Candidate is a device that a job can be placed on.
type Candidate struct {
	Device int
	Full   bool  // the job's limits do not fit, even if all idle users lose their rations
	Lose   int   // idle users that must lose their rations for it
	Free   int64 // bytes of the device that count as free; negative if overbooked
}

// Choose returns the n best of the candidates, or all if there are fewer. The rule is: devices on which the
// limits fit, then those where the fewest idle users lose their rations, then the device with most memory
// free, then the lowest number. why explains the choice; free says in words what is counted as free.
func Choose(n int, all []Candidate, free string) (at region.Place, why string) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b Candidate) int {
		if a.Full != b.Full {
			if a.Full {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(a.Lose, b.Lose), cmp.Compare(b.Free, a.Free), cmp.Compare(a.Device, b.Device))
	})
	var has, left []string
	for i, c := range all {
		had := fmt.Sprintf("GPU %d had %s", c.Device, humanfmt.Bytes(uint64(max(c.Free, 0))))
		text := had + " " + free
		if c.Lose > 0 {
			text = fmt.Sprintf("no GPU had room, and on GPU %d %s lost the ration", c.Device, humanfmt.Plural(c.Lose, "idle user", "idle users"))
		}
		if i < n {
			at |= region.PlaceAt(c.Device)
			has = append(has, text)
		} else {
			left = append(left, had)
		}
	}
	why = strings.Join(has, ", ")
	if len(left) > 0 {
		why += " (" + strings.Join(left, ", ") + ")"
	}
	return at, why
}

// chooses reports whether the plan has a number of devices, which are chosen.
func (p Plan) chooses() bool {
	return p.Settings.Devices.IsSet() && p.Settings.Devices != limit.AllDevices
}

// place restricts limits to the devices of among that it chooses, if the plan has a number of devices. Call done when
// the job's region exists. why is empty if no device is hidden.
func (p Plan) place(limits region.Limits, driver *gpu.Driver, among region.Place) (_ region.Limits, why string, done func(), err error) {
	done = func() {}
	if !p.chooses() {
		return limits, "", done, nil
	}
	wrong := func(err error, use string) error {
		return &limit.InputError{Source: "--devices", Value: p.Settings.Devices.String(), Err: err, Use: use}
	}
	switch {
	case driver == nil:
		return limits, "", done, wrong(errors.New("the machine's devices are not known here"), "all")
	case hasMIG(driver):
		return limits, "", done, wrong(errors.New("a device is divided by MIG, and each instance is a device"), "CUDA_VISIBLE_DEVICES with the UUID of an instance")
	}
	lock, err := lockPlacing()
	if err != nil {
		return limits, "", done, err
	}
	list, listed := os.LookupEnv(visibleDevices)
	if listed {
		among &= DevicesIn(list, driver.Devices, anywhere)
	}
	all := slices.DeleteFunc(candidates(limits, driver, runningJobs()), func(c Candidate) bool { return !among.Has(c.Device) })
	n := int(p.Settings.Devices)
	if n > len(all) {
		_ = lock.Close()
		return limits, "", done, wrong(fmt.Errorf("there are %d that the job may use, by --mem and CUDA_VISIBLE_DEVICES", len(all)), "a smaller number")
	}
	if n == len(driver.Devices) {
		_ = lock.Close()
		return limits, "", done, nil
	}
	at, why := Choose(n, all, "free")
	return limits.Restrict(at), why, func() { _ = lock.Close() }, nil
}

// placingTimeout bounds the wait for other launchers of this user, which choose in milliseconds.
const placingTimeout = 10 * time.Second

// lockPlacing waits until no other launcher of this user chooses devices.
func lockPlacing() (*os.File, error) {
	path := filepath.Join(job.Folder(), ".placing")
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the choice of devices: %w", err)
	}
	for end := time.Now().Add(placingTimeout); ; time.Sleep(2 * time.Millisecond) {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return lock, nil
		}
		if waits := errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR); !waits || time.Now().After(end) {
			_ = lock.Close()
			return nil, fmt.Errorf("locking the choice of devices: %w (does a stopped ration run hold %s?)", err, path)
		}
	}
}

// anywhere has all devices.
var anywhere = region.Limits{}.Visible()

// runningJobs returns the sum of the limits of this user's jobs that have not ended. For root also those of users' rations, which
// are theirs while they have no program as well.
func runningJobs() (all Booking) {
	jobs, _ := job.List() // the job itself has just been made in that folder, so an error is no refusal
	for _, j := range jobs {
		if _, is := job.PolicyUser(j.Path); is && !job.PolicyEnded(j.Path) || job.Running(j) {
			all.Add(limitsOf(j))
		}
	}
	return all
}

// JobsOfRoot returns the limits of root's own jobs that have not ended, for a policy, by the paths of their regions.
func JobsOfRoot() map[string]region.Limits {
	all := map[string]region.Limits{}
	jobs, _ := job.List() // without the list, what they hold still counts
	for _, j := range jobs {
		_, ofUser := job.PolicyUser(j.Path)
		_, standing := job.StandingSince(j)
		if filepath.Dir(filepath.Dir(j.Path)) == job.RootFolder && !ofUser && (standing || job.Running(j)) {
			all[j.Path] = limitsOf(j)
		}
	}
	return all
}

// limitsOf returns the limits of a job of this user. There are none yet, or none that can be read, if it is about to begin. Of a job
// that others can write, root has them beside the region.
func limitsOf(j job.Job) region.Limits {
	l, err := region.LimitsBeside(j.Path)
	if !errors.Is(err, fs.ErrNotExist) {
		return l
	}
	r, err := region.OpenReadOnly(j.Path)
	if err != nil {
		return l
	}
	defer r.Close()
	for d := range abi.Devices {
		memory, _ := r.Limit(d)
		c, _ := r.Compute(d)
		l.Memory[d], l.Compute[d] = memory, uint64(c.Share)
	}
	return l
}

// candidates returns the devices that limits allow, beside the limits of other jobs. Memory counts as free
// if it is in no limit, and no process of the machine holds it.
func candidates(limits region.Limits, driver *gpu.Driver, others Booking) (out []Candidate) {
	for d, total := range driver.Totals() {
		if d >= abi.Devices || !limits.MayUse(d) {
			continue
		}
		c := Candidate{Device: d, Free: int64(total) - int64(others.Memory[d])}
		if free, err := driver.Free(d); err == nil {
			c.Free = min(c.Free, int64(free)+int64(driver.Devices[d].Reserved))
		}
		c.Full = int64(limits.Memory[d].Bytes()) > c.Free || others.Share[d]+uint64(abi.Percent(limits.Compute[d])) > 100
		out = append(out, c)
	}
	return out
}

// DevicesIn returns the devices in a value of CUDA_VISIBLE_DEVICES, for a program that sees those of among: its numbers count
// these. As with the driver, an entry that selects no device ends the list.
func DevicesIn(list string, devices []gpu.Device, among region.Place) (at region.Place) {
	seen := among.Devices()
	for entry := range strings.SplitSeq(list, ",") {
		entry = strings.TrimSpace(entry)
		found := len(devices)
		if number, err := strconv.ParseUint(entry, 10, 8); err == nil && int(number) < len(seen) {
			found = seen[number]
		} else if err != nil && len(entry) > len("GPU-") {
			found = slices.IndexFunc(devices, func(d gpu.Device) bool {
				return strings.HasPrefix(strings.ToLower(d.UUID), strings.ToLower(entry))
			})
		}
		if found < 0 || found >= len(devices) || !among.Has(found) {
			break
		}
		at |= region.PlaceAt(found)
	}
	return at
}

// rationPlace returns the devices that the ration of this user is on: all if the user has no job yet.
func rationPlace() region.Place {
	limits, _ := region.LimitsBeside(job.OfUserPath(os.Getuid()))
	return limits.Visible()
}

// VisibleWord begins the word of a run's request with the user's CUDA_VISIBLE_DEVICES: the run's devices are some of these.
const VisibleWord = "visible="

// visibleWord returns the word of a request for a run with a number of devices that says among which to choose, or "". Only the
// service knows which devices the numbers in it are: the user may have no job yet.
func (p Plan) visibleWord() (string, error) {
	list, listed := os.LookupEnv(visibleDevices)
	if !listed || !p.chooses() {
		return "", nil
	}
	if len(list) > maxVisible {
		return "", fmt.Errorf("%s has %d bytes (name each GPU once, by its number)", visibleDevices, len(list))
	}
	return " " + VisibleWord + strings.Join(strings.Fields(list), ""), nil
}

// maxVisible bounds the devices that a request names: it has room for the UUIDs of all.
const maxVisible = abi.Devices * len("GPU-01234567-89ab-cdef-0123-456789abcdef,")
