#include "gate.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "atomics.h"
#include "export.h"
#include "fakegpu.h"
#include "report.h"

enum { GATES = 16 };

bool gates_armed;

static struct gate {
	char name[64];   /* of the call, with ":before" where it is that */
	unsigned left;   /* calls that are still to be stopped */
	unsigned opened; /* how often; a call waits for the next time */
	unsigned held;
} gates[GATES];

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER; /* over all of the above but held and opened */

/* The gate of a name, made if need be; NULL where there is no room for one. Under the lock. */
static struct gate *gate_of(const char *name)
{
	for (struct gate *g = gates; g < gates + GATES; g++) {
		if (g->name[0] == '\0')
			strncpy(g->name, name, sizeof g->name - 1);
		if (strcmp(g->name, name) == 0)
			return g;
	}
	report_note("more than %d gates", GATES);
	return NULL;
}

static struct gate *gate_named(const char *name)
{
	pthread_mutex_lock(&gate_lock);
	struct gate *g = gate_of(name);
	pthread_mutex_unlock(&gate_lock);
	return g;
}

static void gate_leave(void *gate) { add_relaxed(&((struct gate *)gate)->held, -1u); }

static void gate_wait_at(struct gate *g, bool (*more)(void *), void *arg)
{
	add_relaxed(&g->held, 1);
	pthread_cleanup_push(gate_leave, g);
	while (more(arg))
		nanosleep(&(struct timespec){0, 100000}, NULL);
	pthread_cleanup_pop(1);
}

void gate_wait(const char *name, bool (*more)(void *), void *arg)
{
	struct gate *g = gate_named(name);
	if (g != NULL)
		gate_wait_at(g, more, arg);
}

void gate_count(const char *name, int by)
{
	struct gate *g = gate_named(name);
	if (g != NULL)
		add_relaxed(&g->held, (unsigned)by);
}

struct visit {
	struct gate *gate;
	unsigned opened;
};

static bool gate_shut(void *visit)
{
	const struct visit *v = visit;
	return load_acquire(&v->gate->opened) == v->opened;
}

void gate_pass(const char *name, bool after)
{
	struct visit v = {NULL, 0};
	pthread_mutex_lock(&gate_lock);
	for (struct gate *g = gates; g < gates + GATES && g->name[0] != '\0'; g++) {
		size_t n = strlen(name);
		if (g->left > 0 && strncmp(g->name, name, n) == 0 && strcmp(g->name + n, after ? "" : ":before") == 0) {
			g->left--;
			v = (struct visit){g, g->opened};
		}
	}
	pthread_mutex_unlock(&gate_lock);
	if (v.gate != NULL)
		gate_wait_at(v.gate, gate_shut, &v);
}

EXPORT void fakegpu_hold(const char *name, unsigned calls)
{
	pthread_mutex_lock(&gate_lock);
	struct gate *g = gate_of(name);
	if (g != NULL)
		g->left = calls;
	pthread_mutex_unlock(&gate_lock);
	store_relaxed(&gates_armed, true);
}

EXPORT void fakegpu_open(const char *name)
{
	pthread_mutex_lock(&gate_lock);
	struct gate *g = gate_of(name);
	if (g != NULL) {
		g->left = 0;
		store_release(&g->opened, g->opened + 1);
	}
	pthread_mutex_unlock(&gate_lock);
}

/* Bounded by a count of sleeps: a test may have a clock of its own. */
EXPORT unsigned fakegpu_held(const char *name, unsigned n, unsigned ms)
{
	struct gate *g = gate_named(name);
	if (g == NULL)
		return 0;
	while (load_relaxed(&g->held) < n && ms-- > 0)
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	return load_relaxed(&g->held);
}
