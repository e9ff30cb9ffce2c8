// Command run tests and measures ration on this machine's GPU, from the folder it
// lies in. `make gpu-bundle` makes the folder; README.md in it says more.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"ration/internal/child"
	"ration/internal/gputest"
)

func main() {
	passed, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu-test:", err)
	}
	if err != nil || !passed {
		os.Exit(1)
	}
}

func run() (passed bool, err error) {
	only := flag.String("only", "", "run what matches this `regexp`, as limit/torch or cost/alloc")
	list := flag.Bool("list", false, "list what there is, and do nothing")
	checks := flag.Bool("checks", true, "run the checks")
	measures := flag.Bool("measures", true, "measure what it costs")
	quick := flag.Bool("quick", false, "measure little: to see that it works")
	out := flag.String("json", "gpu-test.json", "write the report to this `file`")
	markdown := flag.String("markdown", "", "write it as tables for a document to this `file`, too")
	device := flag.Int("device", gputest.AnyDevice, "test the GPU of this `number`, as nvidia-smi -L has it (default: the first in CUDA_VISIBLE_DEVICES, or 0)")
	flag.Parse()
	plan := gputest.Plan{Checks: *checks, Measures: *measures, Quick: *quick}
	if plan.Only, err = regexp.Compile(*only); err != nil {
		return false, fmt.Errorf("-only %s: %w", *only, err)
	}
	if *list {
		for _, title := range plan.Titles() {
			fmt.Println(title)
		}
		return true, nil
	}
	self, err := os.Executable()
	if err != nil {
		return false, fmt.Errorf("finding the folder of this program: %w", err)
	}
	m := &gputest.Machine{Bundle: gputest.Bundle(filepath.Dir(self)), Device: *device}
	if err := m.Open(); err != nil {
		return false, err
	}
	defer m.Close()
	defer child.KillAll()
	go func() {
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt, unix.SIGTERM)
		<-interrupted
		child.KillAll()
		m.Close()
		os.Exit(130)
	}()
	table := &gputest.Table{To: os.Stdout}
	if _, err := unix.IoctlGetWinsize(int(os.Stderr.Fd()), unix.TIOCGWINSZ); err == nil {
		table.Progress = os.Stderr
	}
	report, err := gputest.Run(m, plan, table)
	if err != nil {
		return false, err
	}
	report.Print(os.Stdout)
	if err := save(*out, *markdown, report); err != nil {
		return false, fmt.Errorf("writing the report: %w", err)
	}
	return report.Passed(), nil
}

// save writes a report for programs, and, where a file is named, one for people.
func save(out, markdown string, report gputest.Report) error {
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(out, append(text, '\n'), 0o644); err != nil || markdown == "" {
		return err
	}
	var tables bytes.Buffer
	report.Markdown(&tables)
	return os.WriteFile(markdown, tables.Bytes(), 0o644)
}
