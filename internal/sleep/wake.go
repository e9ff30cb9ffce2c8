package sleep

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"ration/internal/abi"
	"ration/internal/gpu"
	"ration/internal/humanfmt"
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/region"
)

// How often the driver is asked again while other programs hold the room.
const askFirst, askLast = 100 * time.Millisecond, 2 * time.Second

// WakeInTurn wakes a job when there is room for its limits, in its turn among the commands that wait for room. Under a
// policy it needs its ration instead, which may be lent while it sleeps.
func WakeInTurn(r *region.Region, j job.Job, wait launch.Wait) (Result, error) {
	began, ruled := time.Now(), job.Ruled()
	turn := ruled
	var promise *os.File
	c := &calls{}
	defer c.close()
	for pause := (job.Backoff{First: askFirst, Last: askLast}); ; {
		if promise == nil && ruled && isLent(r) {
			var err error
			if promise, err = wait.ReturnRation(); err != nil && !job.Ruled() {
				ruled, turn = false, false // the policy was disabled meanwhile, and the job has its limits again
				continue
			} else if err != nil {
				return Result{}, fmt.Errorf("%w (it sleeps on)", err)
			}
			defer promise.Close() // after the wake
		}
		out, err := wake(r, turn, c)
		if errors.Is(err, ErrOverLimit) && promise == nil && ruled && isLent(r) {
			continue // it was lent meanwhile
		}
		if errors.Is(err, errNeedsTurn) {
			gpus, err := gpu.Open("") // kept open: to start NVML again takes long
			if err != nil {
				return out, err
			}
			defer gpus.Close()
			t, err := takeTurn(r, j, gpus, c, wait)
			if err != nil {
				return out, fmt.Errorf("%w (it sleeps on)", err)
			}
			if t != nil {
				defer t.Leave() // only one: with its turn, the loop does not come here again
			}
			turn = t != nil // otherwise it sleeps no more, or has nothing aside
			continue
		}
		again := errors.Is(err, ErrNoRoom) || errors.Is(err, region.ErrSleepBusy)
		if !again || wait.Most < 0 || wait.Most > 0 && time.Since(began) > wait.Most {
			return out, err
		}
		time.Sleep(pause.After(0))
	}
}

// isLent reports whether the policy's service has lent the ration of a job that sleeps: all its limits are 0.
func isLent(r *region.Region) bool {
	zero := false
	for d := range abi.Devices {
		limit, err := r.Limit(d)
		if err != nil || limit.Limited() && limit.Bytes() > 0 {
			return false
		}
		zero = zero || limit.Limited()
	}
	return zero
}

// takeTurn returns when there is room for a job that sleeps, and this process is the first of those that wait. A job that
// has nothing aside, or that another process has woken, needs no ticket. c starts CUDA meanwhile; if others hold the room, it is not kept until they leave.
func takeTurn(r *region.Region, j job.Job, gpus *gpu.Driver, c *calls, wait launch.Wait) (*job.Ticket, error) {
	ask := func() (map[int]uint64, error) { return wants(r, gpus) }
	if now, err := ask(); err != nil || len(now) == 0 {
		return nil, err
	}
	if err := c.start(); err != nil {
		return nil, err
	}
	tell := wait.Tell
	wait.Tell = func(text string) {
		c.close()
		tell(text)
	}
	wait.Sleep = ForRoom
	return wait.Room(j, ask)
}

// wants returns what a job that sleeps needs, by the machine's numbers of devices: its limits, which will count for other
// jobs, or what it has aside where it has no limit, or one that the device can never have room for. Its processes say
// what they have aside. If that can never be brought back, this is an error: the job would keep its place in the queue for ever.
func wants(r *region.Region, gpus *gpu.Driver) (map[int]uint64, error) {
	s := sleeper{r: r, gpus: gpus}
	word, err := r.Sleep()
	if err != nil || word.State() != abi.Asleep && word.State() != abi.Waking {
		return nil, err
	}
	all, err := s.holding()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	out := map[int]uint64{}
	for d := range abi.Devices {
		var aside uint64
		for i := range all {
			aside += all[i].Shown[d]
		}
		limit, err := r.Limit(d)
		if err != nil {
			return nil, err
		}
		uuid, err := r.UUID(d)
		if err != nil {
			return nil, err
		}
		if aside == 0 && uuid[1] == 0 {
			continue // such a device is not known, and a limit there counts for no other job
		}
		at, err := s.device(d)
		if err == nil {
			var bytes uint64
			bytes, err = wantsOn(d, at, gpus, limit, aside)
			if bytes > out[at] {
				out[at] = bytes
			}
		}
		if err != nil && aside > 0 {
			return nil, err
		}
	}
	return out, nil
}

// wantsOn returns what a job that sleeps needs of a device, which is number at of the machine.
func wantsOn(device, at int, gpus *gpu.Driver, limit abi.Limit, aside uint64) (uint64, error) {
	usable := uint64(gpus.Devices[at].Usable())
	switch {
	case limit.Limited() && aside > limit.Bytes():
		return 0, overLimit(device, limit.Bytes(), aside)
	case aside > usable:
		return 0, fmt.Errorf("%w: it had %s on GPU %d, which has %s (end it)", ErrNoRoom, humanfmt.Bytes(aside), at, humanfmt.Bytes(usable))
	case limit.Limited() && limit.Bytes() <= usable:
		return limit.Bytes(), nil
	}
	return aside, nil
}

// Waiter is the command that wakes a job when a call wants it awake. Only ration itself starts it.
const Waiter = "sleep-waiter"

// startWaiter starts it for this sleep of the job, in a session of its own.
func (s *sleeper) startWaiter() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	word, err := s.r.Sleep()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, Waiter, s.r.Path(), strconv.FormatUint(word.Count(), 10), strconv.FormatUint(s.wanted, 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", Waiter, err)
	}
	go func() { _ = cmd.Wait() }() // this process may put the job to sleep many times
	return nil
}

// lookAgain is how often the waiter checks that the job has not ended.
const lookAgain = 5 * time.Second

// WaitToWake wakes a job when a call wants it awake, unless that is done by hand. If a killed process has left the job
// neither awake nor asleep, it brings it back; and a job without processes has nothing to sleep with. It returns when the
// job's sleep number count is over, or the job has ended. wanted is the region's count before that sleep.
func WaitToWake(r *region.Region, j job.Job, count, wanted uint64) error {
	reported := false
	for pause := (job.Backoff{First: askFirst, Last: lookAgain}); ; {
		word, err := r.Sleep()
		if err != nil || word.State() == abi.Awake || word.Count() != count {
			return err
		}
		if word.State() == abi.Asleep && !reported {
			job.QueueChanged() // the process that put it to sleep may have been killed before
			reported = true
		}
		now, err := r.Wanted()
		if err != nil {
			return err
		}
		all, err := (&sleeper{r: r}).holding()
		if err != nil {
			return err
		}
		if now == wanted && len(all) > 0 {
			if err := r.WaitWanted(wanted, lookAgain); err != nil {
				return err
			}
			continue
		}
		if word.Manual() != 0 {
			_, err = wake(r, false, &calls{})
		} else {
			_, err = WakeInTurn(r, j, launch.Wait{Tell: func(string) {}})
		}
		switch {
		case err == nil || len(all) == 0 || errors.Is(err, ErrLost) || errors.Is(err, region.ErrDamaged):
			return err
		case errors.Is(err, errNeedsTurn):
			wanted = now // it sleeps until ration wake
		default:
			time.Sleep(pause.After(0))
		}
	}
}
