#include "compute_wanted.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "config.h"
#include "region/words.h"

static void compute_wanted_add(unsigned device, const struct ration_device_limits *l, void *wants)
{
	(void)device;
	*(bool *)wants |= percent_of(l->compute) || percent_of(l->compute_max);
}

static bool compute_wanted_ask(void)
{
	/* Do not use the program's stack, which may be small. */
	struct {
		struct config c;
		char beside[CONFIG_BESIDE];
	} *m;
	if (config_environment_wants_compute())
		return true;
	if (!config_any())
		return false;
	m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED)
		return false;
	bool wants = false;
	uint64_t priority = 0;
	if (config_find_path(&m->c, true))
		config_read_job_page(&m->c, m->beside, compute_wanted_add, &wants, &priority);
	munmap(m, sizeof *m);
	return wants || priority_of(priority) != RATION_PRIORITY_NORMAL;
}

static uint32_t compute_wanted_asking; /* threads that have the region open in compute_wanted, or are about to; atomic */

bool compute_wanted(bool *asked)
{
	enum { UNKNOWN, NO, YES };
	static int answer;
	int known = __atomic_load_n(&answer, __ATOMIC_SEQ_CST), unknown = UNKNOWN, cancel;
	*asked = false;
	if (known != UNKNOWN)
		return known == YES;
	/* The program may read errno after this call, so keep it. A cancelled thread would
	 * never leave compute_wanted_asking, so do not let it be cancelled. */
	int saved = errno;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	__atomic_fetch_add(&compute_wanted_asking, 1, __ATOMIC_SEQ_CST);
	known = __atomic_load_n(&answer, __ATOMIC_SEQ_CST);
	if (known == UNKNOWN) {
		*asked = true;
		known = compute_wanted_ask() ? YES : NO;
		/* If two threads ask at once, the answer of the first counts for both. */
		if (!__atomic_compare_exchange_n(&answer, &unknown, known, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			known = unknown;
	}
	__atomic_fetch_sub(&compute_wanted_asking, 1, __ATOMIC_SEQ_CST);
	pthread_setcancelstate(cancel, &cancel);
	errno = saved;
	return known == YES;
}

void compute_wanted_wait(void)
{
	for (int ms = 0; ms < 200 && __atomic_load_n(&compute_wanted_asking, __ATOMIC_SEQ_CST); ms++)
		nanosleep(&(struct timespec){0, 1000000}, NULL);
}
