//go:build faultpoints

package region

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
)

// RATION_FAULT=name[:n[:kill|stop|stops]] kills or stops this process when it passes the named
// point for the n-th time; with stops, each time from then on.
var fault struct {
	at     abi.Failpoint
	left   atomic.Int64
	signal syscall.Signal
	again  bool
}

func init() {
	spec := os.Getenv("RATION_FAULT")
	if spec == "" {
		return
	}
	part := strings.Split(spec, ":")
	fault.at, fault.signal = abi.FailpointByName(part[0]), syscall.SIGKILL
	n := 1
	if len(part) > 1 {
		n, _ = strconv.Atoi(part[1])
	}
	if len(part) > 2 && strings.HasPrefix(part[2], "stop") {
		fault.signal, fault.again = syscall.SIGSTOP, part[2] == "stops"
	}
	if fault.at == abi.FailpointNone || n < 1 {
		fmt.Fprintf(os.Stderr, "RATION_FAULT=%q names no point\n", spec)
		os.Exit(2)
	}
	fault.left.Store(int64(n))
}

func point(p abi.Failpoint) {
	if p != fault.at {
		return
	}
	if left := fault.left.Add(-1); left == 0 || left < 0 && fault.again {
		// Send it to this thread, which the goroutine keeps meanwhile. The signal is handled when
		// the system call returns, so that not one more instruction of the protocol runs.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), fault.signal)
	}
}
