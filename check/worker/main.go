package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"ration/check/observer"
	"ration/internal/region"
)

func main() {
	w := &worker{}
	os.Exit(w.run(os.Stdin, os.Stdout))
}

// worker is the state between two lines.
type worker struct {
	path  string
	r     *region.Region
	slots []*region.Slot
	work  *work // in the background; nil if none
	tally tally
	quit  bool // ordered
}

// tally is what the order stop returns.
type tally struct {
	ops, refused atomic.Uint64
	longest      atomic.Int64 // nanoseconds
}

// timed runs one operation, and records its time if it is the longest.
func (t *tally) timed(op func() error) error {
	start := time.Now()
	err := op()
	took := int64(time.Since(start))
	for longest := t.longest.Load(); took > longest && !t.longest.CompareAndSwap(longest, took); {
		longest = t.longest.Load()
	}
	return err
}

// run answers every line of in, and leaves the region when in ends.
func (w *worker) run(in io.Reader, out io.Writer) (status int) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		failed := w.endWork()
		answer, err := w.carryOut(&parser{words: strings.Split(lines.Text(), " ")}, failed)
		if _, err := fmt.Fprintln(out, format(answer, err)); err != nil {
			return 1 // the test has ended
		}
		if w.quit {
			return 0
		}
	}
	_ = w.endWork()
	if err := w.end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// end leaves all slots and closes the region.
func (w *worker) end() (err error) {
	for len(w.slots) > 0 {
		err = errors.Join(err, w.leave())
	}
	if w.r != nil {
		err = errors.Join(err, w.r.Close())
		w.r = nil
	}
	return err
}

var codes = []struct {
	err  error
	code string
}{
	{region.ErrDamaged, "damaged"}, {region.ErrFull, "full"}, {region.ErrLocked, "locked"}, {region.ErrNotHeld, "notheld"},
	{region.ErrDevice, "device"}, {region.ErrEvicted, "evicted"}, {region.ErrClosed, "closed"},
	{region.ErrReadOnly, "readonly"}, {region.ErrNoSpace, "nospace"}, {region.ErrSize, "size"},
	{region.ErrForeign, "foreign"}, {region.ErrVersion, "version"}, {region.ErrSymlink, "symlink"},
	{region.ErrNotRegular, "irregular"}, {region.ErrOwner, "owner"}, {region.ErrInit, "init"},
	{region.ErrLimits, "limits"}, {errUsage, "usage"}, {observer.ErrViolated, "violated"},
}

// format returns the line of an answer.
func format(fields string, err error) string {
	if err == nil {
		return strings.TrimSuffix("ok "+fields, " ")
	}
	var refused *region.RefusedError
	if errors.As(err, &refused) {
		return fmt.Sprintf("refused asked=%d held=%d limit=%d", refused.Asked, refused.Held, refused.Limit)
	}
	code := "other"
	for _, c := range codes {
		if errors.Is(err, c.err) {
			code = c.code
			break
		}
	}
	return "error " + code + " " + strings.ReplaceAll(err.Error(), "\n", "; ")
}
