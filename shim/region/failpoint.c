#include "failpoint.h"

#ifdef RATION_FAULTPOINTS

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const failpoint_names[] = {RATION_FAILPOINT_NAMES};

static int failpoint_at, failpoint_signal = SIGKILL;
static long failpoint_left;
static bool failpoint_again; /* repeat the fault each time after that */

__attribute__((constructor)) static void failpoint_read(void)
{
	const char *spec = secure_getenv("RATION_FAULT");
	if (!spec)
		return;
	size_t len = strcspn(spec, ":");
	for (size_t i = 1; i < sizeof failpoint_names / sizeof *failpoint_names; i++)
		if (strlen(failpoint_names[i]) == len && !strncmp(failpoint_names[i], spec, len))
			failpoint_at = (int)i;
	failpoint_left = 1;
	if (spec[len] == ':') {
		char *end;
		failpoint_left = strtol(spec + len + 1, &end, 10);
		if (!strncmp(end, ":stop", 5))
			failpoint_signal = SIGSTOP;
		failpoint_again = !strcmp(end, ":stops");
	}
}

void ration_failpoint(enum ration_failpoint p)
{
	/* Send the signal to this thread: it takes effect on return from the system call, so that
	 * no further instruction of the protocol runs. */
	if ((int)p != failpoint_at)
		return;
	long left = __atomic_sub_fetch(&failpoint_left, 1, __ATOMIC_RELAXED);
	if (left == 0 || (left < 0 && failpoint_again))
		syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), failpoint_signal);
}

#else
typedef int ration_no_points; /* a translation unit must not be empty */
#endif
