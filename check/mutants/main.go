package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"
)

// turns is how many runs with -turn cover the list.
const turns = 10

func main() {
	turn := flag.Int("turn", -1, "run the mutants of one turn of ten")
	run := flag.String("run", "", "run those whose name has this pattern")
	jobs := flag.Int("jobs", 1, "copies of the repository that are worked in at once")
	dir := flag.String("dir", "build/mutants", "where the copies are, in the repository; two runs at once need two")
	verbose := flag.Bool("v", false, "print what the tests printed")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "mutants: %q: this takes no arguments (use -run=%s for some of them)\n", flag.Arg(0), flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := all(ctx, *turn, *run, *dir, *jobs, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// pick returns the mutants of a turn, or all, whose name has a pattern.
func pick(from []mutant, turn int, pattern string) (out []mutant, err error) {
	name, err := regexp.Compile(pattern)
	for i, m := range from {
		if err == nil && name.MatchString(m.name) && (turn < 0 || i%turns == turn%turns) {
			out = append(out, m)
		}
	}
	return out, err
}

// all runs mutants, and prints a line for each.
func all(ctx context.Context, turn int, pattern, dir string, jobs int, verbose bool) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(root, "check/mutants/list"))
	if err != nil {
		return fmt.Errorf("reading the list: %w (run it in the root of the repository)", err)
	}
	list, _, err := parse(text)
	if err != nil {
		return fmt.Errorf("reading the list: %w", err)
	}
	if list, err = pick(list, turn, pattern); err != nil {
		return fmt.Errorf("choosing mutants: %w", err)
	}
	if len(list) == 0 {
		return fmt.Errorf("no mutant that is to be run has %q in its name", pattern)
	}
	var (
		next   = make(chan mutant)
		mutex  sync.Mutex
		done   int
		failed int
		skips  int
		began  = time.Now()
		errs   = make(chan error, jobs)
	)
	report := func(r result) {
		mutex.Lock()
		defer mutex.Unlock()
		done++
		if r.err != nil {
			failed++
		}
		if r.skipped {
			skips++
		}
		if r.skipped { // as scripts/steps finds it
			fmt.Printf("mutants: skipped: %s, as is a part of its test here: %s\n", r.m.name, r.m.test())
		} else {
			fmt.Printf("%3d of %d  %5.1f s  %s\n", done, len(list), r.took.Seconds(), r)
		}
		if r.err != nil || verbose {
			fmt.Println(tail(r.output))
		}
	}
	for n := range jobs {
		go func() {
			c, err := makeCopy(ctx, root, filepath.Join(root, dir, fmt.Sprint(n+1)))
			for m := range next {
				if err == nil && ctx.Err() == nil {
					report(c.try(m))
				}
			}
			errs <- errors.Join(err, ctx.Err())
		}()
	}
	for _, m := range list {
		next <- m
	}
	close(next)
	for range jobs {
		if err := <-errs; err != nil {
			return err
		}
	}
	fmt.Printf("mutants: %d of %d killed, %d skipped, %d failed, in %v\n", done-failed-skips, len(list), skips, failed, time.Since(began).Round(time.Second))
	if failed > 0 {
		return fmt.Errorf("%d of %d promises can be broken without a test that fails (check/mutants/doc.go)", failed, len(list))
	}
	return nil
}

// tail returns the end of a test's output.
func tail(text []byte) string {
	const most = 3000
	if len(text) > most {
		return "..." + string(text[len(text)-most:])
	}
	return string(text)
}
