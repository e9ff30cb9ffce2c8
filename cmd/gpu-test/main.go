// Command gpu-test tests and measures ration on this machine's GPU. `make gpu-bundle`
// puts it into a folder with all that it needs, as run; README.md describes its use.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"ration/check/benchpage"
	"ration/check/gputest"
	"ration/check/harness"
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
	html := flag.String("html", "", "write the report as a page with plots to this `file`, too")
	from := flag.String("from", "", "run nothing: read the report from this `file` of -json, and write it as -markdown and -html say")
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
	if *from != "" {
		report, err := read(*from)
		if err == nil {
			err = saveAs(*markdown, *html, report)
		}
		return err == nil, err
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
	defer harness.KillAll()
	go func() {
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt, unix.SIGTERM)
		<-interrupted
		harness.KillAll()
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
	if err := errors.Join(save(*out, report), saveAs(*markdown, *html, report)); err != nil {
		return false, fmt.Errorf("writing the report: %w", err)
	}
	return report.Passed(), nil
}

// save writes a report as JSON.
func save(out string, report gputest.Report) error {
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

// saveAs writes a report for people, into the files that are named.
func saveAs(markdown, html string, report gputest.Report) error {
	var tables, page bytes.Buffer
	report.Markdown(&tables)
	err := benchpage.Write(&page, report.Page())
	for _, f := range []struct {
		path string
		text []byte
	}{{markdown, tables.Bytes()}, {html, page.Bytes()}} {
		if f.path != "" && err == nil {
			err = os.WriteFile(f.path, f.text, 0o644)
		}
	}
	return err
}

// read reads what save wrote.
func read(path string) (report gputest.Report, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil {
		return report, fmt.Errorf("reading the report %s: %w", path, err)
	}
	return report, nil
}
