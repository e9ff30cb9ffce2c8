package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"ration/check/observer"
	"ration/internal/abi"
	"ration/internal/region"
)

var errUsage = errors.New("no such order")

var roles = map[region.Role]string{
	region.FastPath: "fast", region.Waited: "waited", region.Helped: "helped", region.Initialiser: "initialiser",
}

// carryOut carries out one order. failed is the error of the background work before it.
func (w *worker) carryOut(arg []string, failed error) (string, error) {
	name, arg := arg[0], arg[1:]
	switch name {
	case "gate":
		_, err := io.Copy(io.Discard, os.NewFile(3, "gate"))
		return "", err
	case "quit":
		w.quit = true
		return "", w.end()
	case "stop":
		return fmt.Sprintf("ops=%d refused=%d longest=%d",
			w.tally.ops.Swap(0), w.tally.refused.Swap(0), w.tally.longest.Swap(0)), failed
	case "open":
		return w.open(arg)
	case "readonly":
		return w.openReadOnly(arg)
	}
	if w.r == nil {
		return "", fmt.Errorf("%s before open: %w", name, errUsage)
	}
	p := parser{arg: arg}
	out, err := w.use(name, &p)
	return out, errors.Join(p.err, err)
}

// use carries out an order that needs a region.
func (w *worker) use(name string, p *parser) (out string, err error) {
	switch name {
	case "claim":
		return w.claim(p.word())
	case "claims":
		return w.claims(p.number())
	case "leave":
		return "", w.tally.timed(w.leave)
	case "charge", "force", "return":
		return "", w.change(name, p)
	case "reap":
		var n int
		err = w.tally.timed(func() (err error) { n, err = w.r.Reap(); return err })
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
		if len(p.arg) == 0 {
			return "", errUsage
		}
		return "", unix.Exec(p.arg[0], p.arg, os.Environ())
	case "exhaust":
		return "", exhaust()
	case "touch":
		fd, err := unix.Open(w.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return "", errors.Join(err, unix.Close(fd))
	}
	return "", w.start(name, p)
}

func (w *worker) open(arg []string) (string, error) {
	if len(arg) == 0 || w.r != nil {
		return "", errUsage
	}
	var opt region.Options
	for _, a := range arg[1:] {
		dev, bytes, _ := strings.Cut(a, "=")
		p := parser{arg: []string{dev, bytes}}
		d, limit := p.number(), p.number()
		if p.err != nil || d < 0 || d >= abi.Devices {
			return "", errUsage
		}
		opt.Limits.Memory[d] = abi.MakeLimit(uint64(limit))
	}
	err := w.tally.timed(func() (err error) { w.r, err = region.Open(arg[0], opt); return err })
	if err != nil {
		w.r = nil
		return "", err
	}
	w.path = arg[0]
	differ, err := w.r.Differences(opt.Limits)
	list := strings.ReplaceAll(strings.Trim(fmt.Sprint(differ), "[]"), " ", ",")
	return fmt.Sprintf("role=%s pid=%d differ=%s", roles[w.r.Role()], os.Getpid(), list), err
}

func (w *worker) openReadOnly(arg []string) (_ string, err error) {
	if len(arg) != 1 || w.r != nil {
		return "", errUsage
	}
	if w.r, err = region.OpenMapped(arg[0]); err != nil {
		w.r = nil
		return "", err
	}
	w.path = arg[0]
	return fmt.Sprintf("pid=%d", os.Getpid()), nil
}

func (w *worker) claim(name string) (string, error) {
	var s *region.Slot
	err := w.tally.timed(func() (err error) { s, err = w.r.Claim(name); return err })
	if err != nil {
		return "", err
	}
	w.slots = append(w.slots, s)
	return fmt.Sprintf("slot=%d", s.Index()), nil
}

func (w *worker) claims(n int) (_ string, err error) {
	before, distinct := len(w.slots), map[int]bool{}
	for range n {
		if _, err = w.claim("many"); err != nil {
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
	op := map[string]func(int, abi.Kind, uint64) error{"charge": s.Charge, "force": s.ForceCharge, "return": s.Return}[name]
	return w.tally.timed(func() error { return op(device, kind, uint64(bytes)) })
}

func (w *worker) limit(p *parser) (string, error) {
	device := p.number()
	if len(p.arg) > 0 {
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
			f += ":" + strconv.FormatUint(bytes, 10)
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

// lose closes the region's descriptors, as a program does that closes all descriptors
// it did not open itself, or replaces them by another file.
func (w *worker) lose(p *parser) (string, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return "", err
	}
	other := -1
	if len(p.arg) > 0 {
		if other, err = unix.Open(p.word(), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600); err != nil {
			return "", err
		}
		defer func() { _ = unix.Close(other) }()
	}
	closed := 0
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || to != w.path {
			continue
		}
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return "", err
		}
		if other >= 0 {
			err = unix.Dup3(other, fd, unix.O_CLOEXEC)
		} else {
			err = unix.Close(fd)
		}
		if err != nil {
			return "", err
		}
		closed++
	}
	return fmt.Sprintf("closed=%d", closed), nil
}

// exhaust takes every descriptor the process may still have.
func exhaust() error {
	// A low limit first, so that they are few.
	limit := unix.Rlimit{Cur: 128, Max: 128}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	for {
		_, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
		switch err {
		case nil, unix.EINTR:
			continue
		case unix.EMFILE:
			return nil
		}
		return err
	}
}
