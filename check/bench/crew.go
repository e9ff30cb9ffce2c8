package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ration/check/harness"
	"ration/internal/embedded"
)

// language is the language of a worker's region code. CUDA programs use the library's, in C; ration itself uses
// the one in Go.
type language string

// The languages, in the order of the tables.
const (
	inC  language = "C"
	inGo language = "Go"
)

var languages = [...]language{inC, inGo}

// answerWithin is how long a worker may take for one order.
const answerWithin = 2 * time.Minute

// errRefused is the answer of a worker whose charge was refused.
var errRefused = errors.New("refused")

// crew is a group of workers in one language.
type crew struct {
	workers []*harness.Process
	gate    *harness.Gate // releases all workers at once
	path    string        // of the region, of a pair
}

// newCrew starts n workers.
func newCrew(lang language, n int) (_ *crew, err error) {
	c := &crew{}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.gate, err = harness.NewGate(); err != nil {
		return nil, err
	}
	for i := range n {
		cmd, err := workerCommand(lang)
		if err != nil {
			return nil, err
		}
		cmd.ExtraFiles = []*os.File{c.gate.File()}
		p, err := harness.Start(harness.Spec{Name: fmt.Sprintf("worker %d in %s", i, lang), Cmd: cmd})
		if err != nil {
			return nil, err
		}
		c.workers = append(c.workers, p)
	}
	return c, nil
}

// openCrew starts n workers that have each opened a region, and have a slot.
func openCrew(lang language, n int, path string, limit uint64) (*crew, error) {
	c, err := newCrew(lang, n)
	if err != nil {
		return nil, err
	}
	c.path = path
	if _, err := c.all(always("open %s %d", path, limit)); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func workerCommand(lang language) (*exec.Cmd, error) {
	if lang == inGo {
		return harness.Again(WorkerCommand)
	}
	dir, err := embedded.BenchWorker.Unpack()
	return exec.Command(filepath.Join(dir, "benchworker")), err
}

// close kills the workers that have not ended, and waits for all.
func (c *crew) close() {
	for _, p := range c.workers {
		p.Close()
	}
	if c.gate != nil {
		c.gate.Close()
	}
}

// order sends worker i an order, and returns its answer.
func (c *crew) order(i int, format string, args ...any) ([]float64, error) {
	c.workers[i].Tell(format, args...)
	return c.answer(i)
}

// answer returns the next answer of worker i.
func (c *crew) answer(i int) (numbers []float64, err error) {
	line, err := c.workers[i].Line(answerWithin)
	if err != nil {
		return nil, err
	}
	if line == "refused" {
		return nil, errRefused
	}
	for field := range strings.FieldsSeq(line) {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return nil, fmt.Errorf("reading an answer of a worker: %w", err)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

// all sends every worker an order, one after the other, and returns the answers.
func (c *crew) all(order func(i int) string) ([][]float64, error) {
	for i, p := range c.workers {
		p.Tell("%s", order(i))
	}
	return c.answers()
}

// atOnce is like all, but all workers begin at the same moment. A crew can do that once.
func (c *crew) atOnce(order func(i int) string) ([][]float64, error) {
	if _, err := c.all(always("gate")); err != nil {
		return nil, err
	}
	for i, p := range c.workers {
		p.Tell("%s", order(i))
	}
	c.gate.Open()
	return c.answers()
}

// answers returns the next answer of each worker.
func (c *crew) answers() (all [][]float64, err error) {
	for i := range c.workers {
		numbers, err := c.answer(i)
		if err != nil {
			return nil, err
		}
		all = append(all, numbers)
	}
	return all, nil
}

// end ends all workers. Those with a slot end without leaving it.
func (c *crew) end() error {
	for _, p := range c.workers {
		p.Tell("exit")
	}
	for _, p := range c.workers {
		if err := p.Wait(answerWithin); err != nil {
			return err
		}
	}
	return nil
}

// always returns the same order for each worker.
func always(format string, args ...any) func(int) string {
	return func(int) string { return fmt.Sprintf(format, args...) }
}

// pair is a worker in each language, each on its own region. The worker in C measures the
// baselines.
type pair map[language]*crew

// withPair calls f with two workers that have a slot each.
func withPair(limit uint64, f func(pair) error) error {
	return inRegion(func(path string) error {
		p := pair{}
		for _, lang := range languages {
			c, err := openCrew(lang, 1, path+"-"+string(lang), limit)
			if err != nil {
				return err
			}
			defer c.close()
			p[lang] = c
		}
		return f(p)
	})
}

// both sends the order to both workers.
func (p pair) both(format string, args ...any) error {
	for _, lang := range languages {
		if _, err := p[lang].order(0, format, args...); err != nil {
			return err
		}
	}
	return nil
}

// ask returns a function that gives a worker an order and returns the first number of its answer.
func (p pair) ask(lang language, order string) func() (float64, error) {
	return func() (float64, error) {
		numbers, err := p[lang].order(0, "%s", order)
		if err != nil {
			return 0, err
		}
		return numbers[0], nil
	}
}

// compare measures an order in both languages and a baseline, in alternating order. It returns the
// row of the baseline, and those of the languages.
func (p pair) compare(rounds int, name, order, baseline string) (bare Row, rows []Row, err error) {
	samples, err := alternate(rounds, p.ask(inC, baseline), p.ask(inC, order), p.ask(inGo, order))
	if err != nil {
		return bare, nil, err
	}
	bare = Samples(samples[0]).row("", Nanoseconds).in(inC).throughput()
	for i, lang := range languages {
		rows = append(rows, Samples(samples[i+1]).row(name, Nanoseconds).in(lang).relativeTo(bare).throughput())
	}
	return bare, rows, nil
}
