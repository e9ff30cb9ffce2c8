#include "failpoint.h"

#ifdef RATION_FAULTPOINTS

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const names[] = {RATION_FAILPOINT_NAMES};

static int fault_at, fault_signal = SIGKILL;
static long fault_left;

__attribute__((constructor)) static void read_fault(void)
{
	const char *spec = getenv("RATION_FAULT");
	if (!spec)
		return;
	size_t len = strcspn(spec, ":");
	for (size_t i = 1; i < sizeof names / sizeof *names; i++)
		if (strlen(names[i]) == len && !strncmp(names[i], spec, len))
			fault_at = (int)i;
	fault_left = 1;
	if (spec[len] == ':') {
		char *end;
		fault_left = strtol(spec + len + 1, &end, 10);
		if (!strcmp(end, ":stop"))
			fault_signal = SIGSTOP;
	}
}

void ration_failpoint(enum ration_failpoint p)
{
	/* To this very thread: the signal is taken on the way out of the call, so that
	 * not one instruction of the protocol follows. */
	if ((int)p == fault_at && __atomic_sub_fetch(&fault_left, 1, __ATOMIC_RELAXED) == 0)
		syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), fault_signal);
}

#else
typedef int ration_no_points; /* a translation unit must not be empty */
#endif
