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
	"ration/internal/job"
	"ration/internal/launch"
	"ration/internal/region"
)

// How often the driver is asked again while other programs hold the room.
const askFirst, askLast = 100 * time.Millisecond, 2 * time.Second

// WakeInTurn wakes a job when there is room for its limits, in its turn among the commands that wait for room. Under a
// policy its limits are its own also while it sleeps.
func WakeInTurn(r *region.Region, j job.Job, wait launch.Wait) (Result, error) {
	return wakeInTurn(r, j, wait, func(abi.Sleep) bool { return true })
}

func wakeInTurn(r *region.Region, j job.Job, wait launch.Wait, may func(abi.Sleep) bool) (Result, error) {
	began := time.Now()
	word, err := r.Sleep()
	if err != nil {
		return Result{}, err
	}
	if state := word.State(); state != abi.Awake && state != abi.Falling && state != abi.Restoring && !launch.Ruled() {
		wants, err := wants(r)
		if err != nil {
			return Result{}, err
		}
		if len(wants) > 0 {
			t, err := wait.Room(j.Name, wants)
			if err != nil {
				return Result{}, fmt.Errorf("waking %s: %w (it sleeps on)", j.Title(), err)
			}
			defer t.Leave()
		}
	}
	for pause := (job.Backoff{First: askFirst, Last: askLast}); ; {
		out, err := wake(r, may)
		if err == nil || !errors.Is(err, ErrNoRoom) || wait.Most < 0 || wait.Most > 0 && time.Since(began) > wait.Most {
			return out, err
		}
		time.Sleep(pause.After(0))
	}
}

// wants returns what a job that sleeps needs, by the machine's numbers of devices: its limit, or what it has aside
// where it has no limit, or one that the device can never have room for.
func wants(r *region.Region) (map[int]uint64, error) {
	gpus, err := gpu.Open("")
	if err != nil {
		return nil, err
	}
	defer gpus.Close()
	s := sleeper{r: r, gpus: gpus}
	all, err := s.holding()
	if err != nil {
		return nil, err
	}
	out := map[int]uint64{}
	for d := range abi.Devices {
		var aside uint64
		for i := range all {
			aside += all[i].Shown[d]
		}
		if aside == 0 {
			continue
		}
		at, err := s.device(d)
		if err != nil {
			return nil, err
		}
		limit, err := r.Limit(d)
		if err != nil {
			return nil, err
		}
		out[at] = max(limit.Bytes(), aside)
		if out[at] > uint64(gpus.Devices[at].Usable()) {
			out[at] = aside
		}
	}
	return out, nil
}

// Waiter is the command that wakes a job when a call wants it awake. Only ration itself starts it.
const Waiter = "sleep-waiter"

// startWaiter starts it in a session of its own, unless only ration wake may wake the job. It is started as soon as calls
// may wait, so it also finishes what this process leaves if it is killed.
func (s *sleeper) startWaiter() error {
	if s.manual {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	word, err := s.r.Sleep()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, Waiter, s.path, strconv.FormatUint(word.Count(), 10), strconv.FormatUint(s.wanted, 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", Waiter, err)
	}
	return cmd.Process.Release()
}

// lookAgain is how often the waiter checks that the job has not ended.
const lookAgain = 5 * time.Second

// waits reports whether calls may end a job's sleep number count, and that goes on.
func waits(word abi.Sleep, count uint64) bool {
	return word.State() != abi.Awake && word.Count() == count && word.Manual() == 0
}

// WaitToWake wakes a job from its sleep number count when a call wants it awake: when the region's count of such calls is
// not wanted any more. It returns when that sleep is over, only ration wake may end it, or the job has ended.
func WaitToWake(r *region.Region, j job.Job, count, wanted uint64) error {
	may := func(word abi.Sleep) bool { return waits(word, count) }
	for pause := (job.Backoff{First: askFirst, Last: lookAgain}); ; {
		word, err := r.Sleep()
		if err != nil || !may(word) {
			return err
		}
		all, err := r.Sleepers()
		if err != nil {
			return err
		}
		now, err := r.Wanted()
		if err != nil {
			return err
		}
		if now == wanted && len(all) > 0 {
			if err := r.WaitWanted(wanted, lookAgain); err != nil {
				return err
			}
			continue
		}
		_, err = wakeInTurn(r, j, launch.Wait{Tell: func(string) {}}, may)
		if err == nil || errors.Is(err, ErrLost) || errors.Is(err, region.ErrDamaged) {
			return err
		}
		time.Sleep(pause.After(0))
	}
}
