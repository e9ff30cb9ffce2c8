package sleep

import (
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/proc"
	"ration/internal/region"
)

// enough is the processor's time in which a thread passes from the library's gate into the driver many times over.
const enough = time.Millisecond

// passed returns when each call that found the job awake is in the driver. A call that comes after the driver's lock
// would wait there, and would not have asked for the job to be woken (shim/PROTOCOLS.md, The gate). A thread that waits
// for something is not on the way from the gate to the driver, and one that has had a processor for a while has arrived.
// If the kernel does not tell, or a thread gets no processor, most has to be enough.
func passed(all []region.Sleeper, most time.Duration) {
	end := time.Now().Add(most)
	pending := map[proc.Thread]time.Duration{}
	for _, p := range all {
		threads, err := proc.Threads(p.PID)
		for i := 0; i < len(threads) && err == nil; i++ {
			var ran time.Duration
			var running bool
			if ran, running, err = threads[i].Running(); running {
				pending[threads[i]] = ran + enough
			}
			if ended(err) {
				err = nil
			}
		}
		if err != nil && !ended(err) {
			time.Sleep(time.Until(end))
			return
		}
	}
	for ; len(pending) > 0 && time.Now().Before(end); time.Sleep(enough) {
		for t, until := range pending {
			ran, running, err := t.Running()
			if ended(err) || err == nil && (!running || ran >= until) {
				delete(pending, t)
			}
		}
	}
}

// ended reports whether an error of /proc is that there is no such process or thread any more.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }
