// Command gpu-test tests and measures ration on this machine's GPU. `make gpu-bundle`
// puts it into a folder with all that it needs, as run; README.md describes its use.
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
	only := flag.String("only", "", "run the checks and measures that match this `regexp`, as limit/torch or cost/alloc")
	list := flag.Bool("list", false, "list the checks and measures")
	checks := flag.Bool("checks", true, "run the checks")
	measures := flag.Bool("measures", true, "run the measures")
	quick := flag.Bool("quick", false, "few rounds: a smoke run")
	out := flag.String("json", "gpu-test.json", "write the report to this `file`")
	markdown := flag.String("markdown", "", "write the report as Markdown tables to this `file`, too")
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

// save writes a report as JSON and, if a file is named, as Markdown.
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
