package gputest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"time"

	"ration/internal/launch"
)

// runCost measures what ration run takes until the command has ended, beside the command
// alone: where the devices are known from an earlier run, and where NVML must be started.
func (t *Trial) runCost() (rows []Row, err error) {
	for _, c := range []struct {
		name   string
		known  bool
		target time.Duration // the most
	}{
		{"ration run of a command", true, 10 * time.Millisecond},
		{"the first since the machine was started", false, 0},
	} {
		var took series
		for round := range t.rounds(30) {
			for _, i := range turns(round) {
				if !c.known {
					if err := os.Remove(launch.DevicesFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
						return rows, fmt.Errorf("forgetting the devices: %w", err)
					}
				}
				one, err := t.timeRun(i == inJob)
				if err != nil {
					return rows, err
				}
				if round > 0 { // files are cached, and the devices known
					took[i] = append(took[i], one)
				}
			}
		}
		row := took.row(c.name, nanoseconds)
		if c.target > 0 {
			row = row.within(float64(c.target))
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// timeRun returns how many nanoseconds a command takes that does nothing.
func (t *Trial) timeRun(rationed bool) (float64, error) {
	command := []string{"true"}
	if rationed {
		command = []string{t.Bundle.file("ration"), "run", "--mem", "1g", "--", "true"}
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = t.environ()
	begun := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("timing %v: %w: %s", command, err, out)
	}
	return float64(time.Since(begun)), nil
}
