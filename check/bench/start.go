package bench

import (
	"fmt"
	"os"
	"os/exec"
)

// startUp measures the processor's time of a command of ration that does nothing else, and of a program that does nothing.
func startUp(env Env) (Result, error) {
	self, err := os.Executable()
	if err != nil {
		return Result{}, err
	}
	env.Say("starting a command")
	times, err := alternate(env.pick(100, 5), func() (float64, error) { return spent(exec.Command("true")) }, func() (float64, error) {
		cmd := exec.Command(self, "version")
		cmd.Args[0] = "ration"
		return spent(cmd)
	})
	if err != nil {
		return Result{}, err
	}
	bare := Samples(times[0]).row("true", Nanoseconds).in(inC)
	return Result{Rows: []Row{bare, Samples(times[1]).row("ration version", Nanoseconds).in(inGo).relativeTo(bare)}, Notes: []string{
		"The time of the processor, of the program and of the kernel for it. × bare: against the program true, which does nothing.",
	}}, nil
}

// spent runs a program and returns the processor's time for it, in nanoseconds.
func spent(cmd *exec.Cmd) (float64, error) {
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("running %v: %w", cmd.Args, err)
	}
	return float64(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()), nil
}
