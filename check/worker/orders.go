package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ration/check/harness"
	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/region"
)

var errUsage = errors.New("no such order")

// parser splits an order into words. err is set if a word is missing or wrong.
type parser struct {
	words []string
	err   error
}

func (p *parser) word() string {
	if len(p.words) == 0 {
		p.err = errUsage
		return ""
	}
	word := p.words[0]
	p.words = p.words[1:]
	return word
}

func (p *parser) number() int {
	n, err := strconv.Atoi(p.word())
	if err != nil {
		p.err = errUsage
	}
	return n
}

func (p *parser) kind() abi.Kind {
	word := p.word()
	for k := range abi.Kinds {
		if k.String() == word {
			return k
		}
	}
	p.err = errUsage
	return 0
}

func (p *parser) devices() (out []int) {
	for word := range strings.SplitSeq(p.word(), ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 || n >= abi.Devices {
			p.err = errUsage
			return nil
		}
		out = append(out, n)
	}
	return out
}

// carryOut executes one order. failed is the error of earlier background work.
func (w *worker) carryOut(p *parser, failed error) (out string, err error) {
	name := p.word()
	switch name {
	case "gate":
		harness.WaitAtGate(0)
		return "", nil
	case "quit":
		w.quit = true
		return "", w.end()
	case "stop":
		return fmt.Sprintf("ops=%d refused=%d longest=%d",
			w.tally.ops.Swap(0), w.tally.refused.Swap(0), w.tally.longest.Swap(0)), failed
	}
	if opens := name == "open" || name == "readonly"; opens != (w.r == nil) {
		return "", fmt.Errorf("%s before open, or a second time: %w", name, errUsage)
	}
	err = w.tally.timed(func() (err error) { out, err = w.use(name, p); return err })
	return out, errors.Join(p.err, err)
}

// use executes an order that needs a region, or opens it.
func (w *worker) use(name string, p *parser) (out string, err error) {
	switch name {
	case "open", "readonly":
		return w.open(name, p)
	case "claim":
		if err := w.claim(p.word()); err != nil {
			return "", err
		}
		return fmt.Sprintf("slot=%d", w.slots[len(w.slots)-1].Index()), nil
	case "claims":
		return w.claims(p.number())
	case "leave":
		return "", w.leave()
	case "charge", "return":
		return "", w.change(name, p)
	case "reap":
		n, err := w.r.Reap()
		return fmt.Sprintf("slots=%d", n), err
	case "used":
		used, err := observer.Used(w.r, p.number())
		return fmt.Sprintf("bytes=%d", used), err
	case "limit":
		return w.limit(p)
	case "holdings":
		return w.holdings(p.number())
	case "processes":
		return w.processes()
	case "counters":
		c, err := w.r.Counters()
		return fmt.Sprintf("retries=%d best=%d reaped=%d refused=%d helped=%d claims=%d fast=%d", c.Retries, c.BestEffort, c.Reaped, c.Refused, c.Helped, c.Claims, c.Fast), err
	case "lose":
		return w.lose(p)
	case "become":
		args := p.words
		return "", unix.Exec(p.word(), args, os.Environ())
	case "exhaust":
		return "", exhaust()
	case "touch":
		fd, err := unix.Open(w.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return "", errors.Join(err, unix.Close(fd))
	}
	return "", w.start(name, p)
}

func (w *worker) open(name string, p *parser) (string, error) {
	w.path = p.word()
	if name == "readonly" {
		r, err := region.OpenMapped(w.path)
		if err != nil {
			return "", err
		}
		w.r = r
		return fmt.Sprintf("pid=%d", os.Getpid()), nil
	}
	var opt region.Options
	for len(p.words) > 0 {
		device, bytes, _ := strings.Cut(p.word(), "=")
		limit := parser{words: []string{device, bytes}}
		d, n := limit.devices(), limit.number()
		if limit.err != nil {
			return "", errUsage
		}
		opt.Limits.Memory[d[0]] = abi.MakeLimit(uint64(n))
	}
	r, err := region.Open(w.path, opt)
	if err != nil {
		return "", err
	}
	w.r = r
	differ, err := r.Differences(opt.Limits)
	list := strings.ReplaceAll(strings.Trim(fmt.Sprint(differ), "[]"), " ", ",")
	role, _, _ := strings.Cut(r.Role().String(), " ")
	return fmt.Sprintf("role=%s pid=%d differ=%s", role, os.Getpid(), list), err
}

func (w *worker) claim(name string) error {
	s, err := w.r.Claim(name)
	if err == nil {
		w.slots = append(w.slots, s)
	}
	return err
}

func (w *worker) claims(n int) (_ string, err error) {
	before, distinct := len(w.slots), map[int]bool{}
	for range n {
		if err = w.claim("many"); err != nil {
			break
		}
		distinct[w.slots[len(w.slots)-1].Index()] = true
	}
	for len(w.slots) > before {
		err = errors.Join(err, w.leave())
	}
	return fmt.Sprintf("slots=%d", len(distinct)), err
}

// leave leaves the slot claimed last.
func (w *worker) leave() error {
	if len(w.slots) == 0 {
		return errUsage
	}
	last := len(w.slots) - 1
	s := w.slots[last]
	w.slots = w.slots[:last]
	return s.Leave()
}

func (w *worker) change(name string, p *parser) error {
	device, kind, bytes := p.number(), p.kind(), p.number()
	if len(w.slots) == 0 || p.err != nil {
		return errUsage
	}
	s := w.slots[len(w.slots)-1]
	if name == "charge" {
		return s.Charge(device, kind, uint64(bytes))
	}
	return s.Return(device, kind, uint64(bytes))
}

func (w *worker) limit(p *parser) (string, error) {
	device := p.number()
	if len(p.words) > 0 {
		return "", w.r.SetLimit(device, abi.MakeLimit(uint64(p.number())))
	}
	l, err := w.r.Limit(device)
	if !l.Limited() {
		return "bytes=none", err
	}
	return fmt.Sprintf("bytes=%d", l.Bytes()), err
}

func (w *worker) holdings(device int) (string, error) {
	held, err := w.r.Holdings(device, nil)
	var out []string
	for _, h := range held {
		f := fmt.Sprintf("%d:%d", h.Slot, h.Total)
		for _, bytes := range h.Kind {
			f += fmt.Sprintf(":%d", bytes)
		}
		if h.BestEffort {
			f += ":best-effort"
		}
		out = append(out, f)
	}
	return strings.Join(out, " "), err
}

func (w *worker) processes() (string, error) {
	list, err := w.r.Processes()
	var out []string
	for _, p := range list {
		state := "alive"
		if p.Dead {
			state = "dead"
		}
		out = append(out, fmt.Sprintf("%d:%d:%d:%s:%s", p.Slot, p.PID, p.HostPID, p.Name, state))
	}
	return strings.Join(out, " "), err
}

// lose closes the region's descriptors, or replaces them by another file, like a program that
// closes all descriptors that it did not open.
func (w *worker) lose(p *parser) (string, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return "", err
	}
	lose := unix.Close
	if len(p.words) > 0 {
		other, err := unix.Open(p.word(), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return "", err
		}
		defer unix.Close(other)
		lose = func(fd int) error { return unix.Dup3(other, fd, unix.O_CLOEXEC) }
	}
	closed := 0
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || to != w.path {
			continue
		}
		fd, err := strconv.Atoi(e.Name())
		if err = errors.Join(err, lose(fd)); err != nil {
			return "", err
		}
		closed++
	}
	return fmt.Sprintf("closed=%d", closed), nil
}

// exhaust uses up all free descriptors of the process.
func exhaust() error {
	// Lower the limit first, so that there are few.
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 128, Max: 128})
	for err == nil || err == unix.EINTR {
		_, err = unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err == unix.EMFILE {
		return nil
	}
	return err
}
