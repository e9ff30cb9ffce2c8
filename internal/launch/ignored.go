package launch

// Go takes over most signals before main, and what it has taken over is back to
// its default action after an exec. Whoever told us to ignore one (a shell that
// starts jobs in the background, systemd) meant the command: so look before Go does.

/*
#include <signal.h>

static unsigned long long ignored;

__attribute__((constructor)) static void look(void)
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

// Ignored makes this process ignore again what it was told to when it started,
// and with it whatever it becomes or starts.
func Ignored() {
	for s, mask := syscall.Signal(1), uint64(C.ration_ignored()); s < 32; s++ {
		// Whoever ignores its children cannot wait for them.
		if mask>>uint(s)&1 != 0 && s != syscall.SIGCHLD {
			signal.Ignore(s)
		}
	}
}
