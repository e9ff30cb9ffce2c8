#include "mark.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

enum { MARK_YIELDS = 16, MARK_NAPS = 1000, MARK_NAP_NS = 20000, MARK_LONGEST_NAP_NS = 1000000 };

bool mark_try(struct mark *m, int *cancel)
{
	uint32_t none = 0;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, cancel);
	/* Acquire: pairs with mark_give. */
	if (__atomic_compare_exchange_n(&m->taken, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return true;
	pthread_setcancelstate(*cancel, cancel);
	return false;
}

/* A thread keeps the mark for microseconds; or for milliseconds if it loses the processor
 * meanwhile. */
bool mark_take(struct mark *m, int *cancel)
{
	long nap = MARK_NAP_NS;
	for (unsigned i = 0; !__atomic_load_n(&m->stuck, __ATOMIC_RELAXED); i++) {
		if (mark_try(m, cancel))
			return true;
		if (i < MARK_YIELDS) {
			sched_yield();
			continue;
		}
		if (i == MARK_YIELDS + MARK_NAPS)
			__atomic_store_n(&m->stuck, 1, __ATOMIC_RELAXED);
		nanosleep(&(struct timespec){0, nap}, NULL);
		nap = nap * 2 < MARK_LONGEST_NAP_NS ? nap * 2 : MARK_LONGEST_NAP_NS;
	}
	return mark_try(m, cancel);
}

void mark_give(struct mark *m, int cancel)
{
	__atomic_store_n(&m->stuck, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&m->taken, 0, __ATOMIC_RELEASE);
	pthread_setcancelstate(cancel, &cancel);
}
