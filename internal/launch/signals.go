//go:build cgo

package launch

// Go installs handlers for most signals before main, and exec resets those to the default action.
// But a parent that started ration with a signal ignored (a shell that starts jobs in the
// background, systemd) meant the command to ignore it. So a constructor, which runs before Go,
// records which signals were ignored.

/*
#include <signal.h>

static unsigned long long ignored;

__attribute__((constructor)) static void record_ignored(void)
{
	struct sigaction a;
	for (int s = 1; s < 32; s++)
		if (sigaction(s, NULL, &a) == 0 && a.sa_handler == SIG_IGN)
			ignored |= 1ull << s;
}

static unsigned long long ration_ignored(void) { return ignored; }
*/
import "C"

import (
	"os/signal"
	"syscall"
)

// RestoreIgnoredSignals makes this process, and the programs that it starts or becomes, ignore the
// signals that were ignored when it was started.
func RestoreIgnoredSignals() {
	for s, mask := syscall.Signal(1), uint64(C.ration_ignored()); s < 32; s++ {
		// A process that ignores SIGCHLD cannot wait for its children.
		if mask>>uint(s)&1 != 0 && s != syscall.SIGCHLD {
			signal.Ignore(s)
		}
	}
}
