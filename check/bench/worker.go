package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/harness"
	"ration/internal/abi"
	"ration/internal/region"
)

// WorkerCommand is the first argument of a worker in Go. The worker in C is
// check/programs/benchworker.
const WorkerCommand = "bench-worker"

// chargeBytes is the size of one charge in the benchmarks.
const chargeBytes = 4096

// worker is a process that a benchmark gives orders, one line each. It answers each order by one
// line of numbers, in the orders' sequence; times are in nanoseconds. An error ends it. When its
// input ends it leaves its slots.
//
//	gate                   answer at once, then wait until the gate opens, which is the end of descriptor 3
//	open PATH BYTES        attach to a region, made if need be with this limit on every device,
//	                       and claim a slot: the role, the time, the CPU time
//	charge N [THREADS]     the time of one of N charges, which are returned afterwards
//	return N               the same of returns
//	turns N                the same of charges by two slots in turn
//	used N                 the same of reading a device's usage
//	slots N                have N slots, all but the first with one charge
//	live N                 hold N charges
//	write MICROSECONDS     charge and return with this pause, until it is killed
//	snapshots NS           read what all processes hold for that long: the time's percentiles 50, 99
//	                       and 99.9, the least, the largest, how many; reads of one process, those
//	                       that were repeated, best-effort ones, inconsistent ones
//	readbeside NS          the same beside a thread that charges and returns without a pause
//	scale NS DEVICE        charge for that long: how many, their CPU time, the begin, the end
//	hold BYTES             charge them, then charge and return without a pause, until it is killed
//	ask BYTES              the time of a charge, or the word "refused"
//	steps N                training steps: the time of each, and of the changes in it
//	exit                   end without leaving the slots
//
// The worker in C also has what is compared with these: burn NS (use so much CPU time), add N
// [THREADS], load N, clock N, publish N (a change of the account alone), plain N and plainread NS
// (a plain sequence lock), and steps N FILE (with FILE locked around each change).
type worker struct {
	r     *region.Region
	slots []*region.Slot
	held  uint64 // charges of the order live
	out   *bufio.Writer
}

// ServeWorker carries out orders until the input ends.
func ServeWorker(in io.Reader, out io.Writer) error {
	runtime.LockOSThread() // so that the CPU time of the thread is that of the order
	w := &worker{out: bufio.NewWriter(out)}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if err := w.carryOut(lines.Text()); err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
	}
	return w.order("slots", 0, 0)
}

func (w *worker) carryOut(line string) error {
	name, rest, _ := strings.Cut(line, " ")
	var n, m uint64
	if name == "open" {
		var path string
		if _, err := fmt.Sscan(rest, &path, &n); err != nil {
			return err
		}
		return w.open(path, n)
	}
	if _, err := fmt.Sscan(rest, &n, &m); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return w.order(name, n, m)
}

func (w *worker) order(name string, n, m uint64) error {
	switch name {
	case "gate":
		return w.gate()
	case "charge", "return", "turns", "used":
		return w.repeat(name, n, max(m, 1))
	case "slots":
		return w.setSlots(int(n))
	case "live":
		return w.live(n)
	case "write":
		return w.write(time.Duration(n) * time.Microsecond)
	case "snapshots":
		return w.snapshots(time.Duration(n))
	case "readbeside":
		return w.readBeside(time.Duration(n))
	case "scale":
		return w.scale(time.Duration(n), int(m%abi.Devices))
	case "hold":
		return w.hold(n)
	case "ask":
		return w.ask(n)
	case "steps":
		return w.steps(int(n))
	case "exit":
		os.Exit(0)
	}
	return errors.New("no such order")
}

// answer sends a line of numbers.
func (w *worker) answer(numbers ...float64) error {
	for i, n := range numbers {
		if i > 0 {
			_ = w.out.WriteByte(' ')
		}
		_, _ = fmt.Fprint(w.out, n)
	}
	_ = w.out.WriteByte('\n')
	return w.out.Flush()
}

func (w *worker) gate() error {
	if err := w.answer(); err != nil {
		return err
	}
	harness.WaitAtGate(0)
	return nil
}

func (w *worker) open(path string, limit uint64) error {
	var opt region.Options
	for d := range opt.Limits.Memory {
		opt.Limits.Memory[d] = abi.MakeLimit(limit)
	}
	from, spent := time.Now(), readClock(unix.CLOCK_THREAD_CPUTIME_ID)
	r, err := region.Open(path, opt)
	if err != nil {
		return err
	}
	s, err := r.Claim("bench")
	if err != nil {
		return err
	}
	w.r, w.slots = r, append(w.slots, s)
	return w.answer(float64(r.Role()), float64(time.Since(from)), readClock(unix.CLOCK_THREAD_CPUTIME_ID)-spent)
}

func (w *worker) charge() error   { return w.slots[0].Charge(0, abi.Data, chargeBytes) }
func (w *worker) giveBack() error { return w.slots[0].Return(0, abi.Data, chargeBytes) }

// repeat times n operations in so many threads, and returns what they charged.
func (w *worker) repeat(name string, n, threads uint64) error {
	n -= n % (threads * 2)
	var took time.Duration
	var err error
	mine := w.slots[0]
	switch name {
	case "charge":
		took, err = together(int(threads), func() error { return chargeTimes(mine, 0, n/threads) })
		err = errors.Join(err, mine.Return(0, abi.Data, n*chargeBytes))
	case "return":
		if err := mine.Charge(0, abi.Data, n*chargeBytes); err != nil {
			return err
		}
		took, err = together(1, func() error { return returnTimes(mine, n) })
	case "turns":
		other := w.slots[1]
		took, err = together(1, func() error {
			for range n / 2 {
				if err := errors.Join(mine.Charge(0, abi.Data, chargeBytes), other.Charge(0, abi.Data, chargeBytes)); err != nil {
					return err
				}
			}
			return nil
		})
		err = errors.Join(err, mine.Return(0, abi.Data, n/2*chargeBytes), other.Return(0, abi.Data, n/2*chargeBytes))
	case "used":
		sum := uint64(0)
		took, err = together(1, func() error {
			for range n {
				sum += w.r.Used(0)
			}
			return nil
		})
		runtime.KeepAlive(sum)
	}
	if err != nil {
		return err
	}
	return w.answer(float64(took) / float64(n))
}

func chargeTimes(s *region.Slot, device int, n uint64) error {
	for range n {
		if err := s.Charge(device, abi.Data, chargeBytes); err != nil {
			return err
		}
	}
	return nil
}

func returnTimes(s *region.Slot, n uint64) error {
	for range n {
		if err := s.Return(0, abi.Data, chargeBytes); err != nil {
			return err
		}
	}
	return nil
}

// together runs f in n threads at once, and returns how long all of them took.
func together(n int, f func() error) (time.Duration, error) {
	if n == 1 {
		from := time.Now()
		err := f()
		return time.Since(from), err
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(n, runtime.NumCPU())))
	var wg sync.WaitGroup
	errs, gate := make([]error, n), make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-gate
			errs[i] = f()
		})
	}
	from := time.Now()
	close(gate)
	wg.Wait()
	return time.Since(from), errors.Join(errs...)
}

func (w *worker) setSlots(n int) error {
	for len(w.slots) < n {
		s, err := w.r.Claim("bench")
		if err != nil {
			return err
		}
		w.slots = append(w.slots, s)
		if err := s.Charge(0, abi.Data, chargeBytes); err != nil {
			return err
		}
	}
	for _, s := range slices.Backward(w.slots[n:]) {
		if err := s.Leave(); err != nil {
			return err
		}
	}
	w.slots = w.slots[:n]
	return w.answer()
}

func (w *worker) live(n uint64) error {
	var err error
	if n > w.held {
		err = chargeTimes(w.slots[0], 0, n-w.held)
	} else {
		err = w.slots[0].Return(0, abi.Data, (w.held-n)*chargeBytes)
	}
	w.held = n
	return errors.Join(err, w.answer())
}

// writeOnce makes the i-th change of an endless series: charges and returns of two kinds.
func (w *worker) writeOnce(i int) error {
	change, kind := w.slots[0].Charge, abi.Data
	if i%4 >= 2 {
		change = w.slots[0].Return
	}
	if i%2 == 1 {
		kind = abi.Module
	}
	return change(0, kind, chargeBytes)
}

func (w *worker) write(pause time.Duration) error {
	if err := w.answer(); err != nil {
		return err
	}
	for i := 0; ; i++ {
		if err := w.writeOnce(i); err != nil {
			return err
		}
		if pause > 0 {
			time.Sleep(pause)
		}
	}
}

func (w *worker) snapshots(long time.Duration) error {
	before, err := w.r.Counters()
	if err != nil {
		return err
	}
	took, buf, torn := make(Samples, 0, 8_000_000), make([]region.Holding, 0, abi.Slots), 0
	for until := time.Now().Add(long); len(took) < cap(took); {
		from := time.Now()
		buf, err = w.r.Holdings(0, buf[:0])
		to := time.Now()
		if err != nil {
			return err
		}
		took = append(took, float64(to.Sub(from)))
		for _, h := range buf {
			if sum := h.Kind[abi.Data] + h.Kind[abi.Module]; sum != h.Total && !h.BestEffort {
				torn++
			}
		}
		if to.After(until) {
			break
		}
	}
	after, err := w.r.Counters()
	if err != nil {
		return err
	}
	slices.Sort(took)
	return w.answer(took.Percentile(50), took.Percentile(99), took.Percentile(99.9), took[0], took[len(took)-1], float64(len(took)),
		float64(after.Reads-before.Reads), float64(after.Retries-before.Retries), float64(after.BestEffort-before.BestEffort), float64(torn))
}

func (w *worker) readBeside(long time.Duration) error {
	var stop atomic.Bool
	var failed error
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; failed == nil && (!stop.Load() || i%4 != 0); i++ {
			failed = w.writeOnce(i)
		}
	})
	err := w.snapshots(long)
	stop.Store(true)
	writer.Wait()
	return errors.Join(err, failed)
}

func (w *worker) scale(long time.Duration, device int) error {
	const batch = 1000
	s, ops := w.slots[0], 0.0
	begin, from, spent := readClock(unix.CLOCK_MONOTONIC), time.Now(), readClock(unix.CLOCK_PROCESS_CPUTIME_ID)
	for time.Since(from) < long {
		if err := errors.Join(chargeTimes(s, device, batch), s.Return(device, abi.Data, batch*chargeBytes)); err != nil {
			return err
		}
		ops += batch + 1
	}
	return w.answer(ops, readClock(unix.CLOCK_PROCESS_CPUTIME_ID)-spent, begin, readClock(unix.CLOCK_MONOTONIC))
}

// readClock returns the time of a clock, in nanoseconds.
func readClock(id int32) float64 {
	var now unix.Timespec
	if unix.ClockGettime(id, &now) != nil {
		return 0
	}
	return float64(now.Nano())
}

func (w *worker) hold(bytes uint64) error {
	if err := errors.Join(w.slots[0].Charge(0, abi.Data, bytes), w.answer()); err != nil {
		return err
	}
	for {
		if err := errors.Join(w.giveBack(), w.charge()); err != nil {
			return err
		}
	}
}

func (w *worker) ask(bytes uint64) error {
	from := time.Now()
	err := w.slots[0].Charge(0, abi.Data, bytes)
	took := time.Since(from)
	if errors.Is(err, region.ErrRefused) {
		_, _ = w.out.WriteString("refused")
		return w.answer()
	}
	if err != nil {
		return err
	}
	return errors.Join(w.slots[0].Return(0, abi.Data, bytes), w.answer(float64(took)))
}
