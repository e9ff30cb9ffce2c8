package region

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"ration/internal/abi"
)

// guard turns a fault on the mapping into ErrDamaged. A process that may write the file may also
// cut it short, and access to a missing page raises SIGBUS. That must not end a process that only
// reads.
//
//	defer r.guard(&err, debug.SetPanicOnFault(true))
func (r *Region) guard(err *error, before bool) {
	r.recovered(recover(), err, before, r.mem, r.limitsMem)
}

// recovered handles a panic for guard, for any mapping.
func (r *Region) recovered(p any, err *error, before bool, mappings ...[]byte) {
	debug.SetPanicOnFault(before)
	if p == nil {
		return
	}
	fault, ok := p.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok || !slices.ContainsFunc(mappings, func(mem []byte) bool { return within(mem, fault.Addr()) }) {
		panic(p)
	}
	r.broken.Store(true)
	*err = fmt.Errorf("region %s: %w (the file was cut short while in use; end the job and remove it)", r.path, ErrDamaged)
}

// look returns the result of f, which reads the region. It returns an error if the file was cut
// short before or during that.
func look[T any](r *Region, f func() T) (v T, err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := r.whole(); err != nil {
		return v, err
	}
	v = f()
	return v, r.whole()
}

// lookAt is look for one device.
func lookAt[T any](r *Region, device int, f func() T) (v T, err error) {
	if err := checkDevice(device); err != nil {
		return v, err
	}
	return look(r, f)
}

// whole reads the last word of the file before anything else is accessed. A file that was cut short
// faults here, and one that was cut short and extended again has lost that word.
func (r *Region) whole() error {
	if r.broken.Load() || atomic.LoadUint64(&r.m.Tail.Magic) != abi.TailMagic {
		return r.damaged()
	}
	return nil
}

func (r *Region) damaged() error {
	if r.closed.Load() {
		return ErrClosed
	}
	return fmt.Errorf("region %s: %w (end the job and remove the file)", r.path, ErrDamaged)
}
