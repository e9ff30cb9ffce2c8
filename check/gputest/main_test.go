// Package gputest checks and measures ration on a machine with a GPU, with real
// programs, frameworks and the real driver. It compares what ration counts for each
// process with what the driver reports through NVML to this process, which is in no
// job.
//
// With the build tag bundle these tests are compiled into a program for a machine that
// has nothing but a driver (see README.md). It finds the other programs in its own
// folder, which `make gpu-bundle` makes:
//
//	ration      the command, with the library inside
//	bin/        C programs that call the driver
//	src/        CUDA programs, compiled if there is a compiler
//	python/     programs of the frameworks
//	coverage.md the calls that ration knows
//
// Without the tag, as in `make test`, they run against the stand-in driver of fakegpu,
// which tests the checks themselves (standin_test.go).
package gputest

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/harness"
	"ration/check/testenv"
)

var (
	bundleFlag = flag.String("bundle", "", "the `folder` of the programs (default: the folder of this program)")
	htmlFlag   = flag.String("html", "", "write the results as a page with plots to this `file`")
)

func TestMain(m *testing.M) {
	if standIn == nil {
		_ = flag.Set("test.v", "true") // people watch it; -test.v=false still works
	}
	flag.Parse()
	go func() {
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt, unix.SIGTERM)
		<-interrupted
		harness.KillAll()
		opened.close()
		os.Exit(130)
	}()
	if standIn == nil && flag.Lookup("test.list").Value.String() == "" {
		if _, err := openOnce(); err != nil { // before each check says so
			fmt.Fprintln(os.Stderr, err)
			opened.close()
			os.Exit(1)
		}
	}
	code := m.Run()
	if opened != nil && opened.ready {
		if err := report.write(*htmlFlag); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	opened.close()
	os.Exit(code)
}

// check runs one check as a subtest. room is how many bytes of the device must be free,
// needs is what else the machine must have (see needs_test.go): else the check is skipped.
func check(t *testing.T, name string, room uint64, needs []string, run func(*trial)) {
	measure(t, name, room, needs, func(t *trial) {
		if t.onStandIn() {
			testenv.NeedsHost(t)
		}
		run(t)
	})
}

// measure is check for a cost, which needs no PIDs of the host.
func measure(t *testing.T, name string, room uint64, needs []string, run func(*trial)) {
	t.Run(name, func(t *testing.T) {
		trial := openTestbed(t).newTrial(t)
		t.Cleanup(func() {
			verdict := pass
			switch {
			case t.Failed():
				verdict = fail
			case t.Skipped():
				verdict = skip
			}
			report.add(t.Name(), verdict, trial.summary())
		})
		defer trial.close()
		trial.need(room, needs)
		run(trial)
		trial.Log(strings.Join(trial.notes, "; "))
	})
}
