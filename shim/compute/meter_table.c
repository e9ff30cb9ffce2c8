#include "compute/meter_table.h"

#include <string.h>

#include "hooks.h"
#include "mark.h"

enum { METER_TABLE_SIZE = 32 };

static struct meter meter_table[METER_TABLE_SIZE] __attribute__((aligned(64)));
static uint32_t meter_table_used;       /* how many entries were ever used; atomic */
static struct mark meter_table_claimed; /* held by a thread that gives a meter to a context, so that no context gets two */
static unsigned meter_table_hand;       /* the entry that is tried next if none is free; guarded by meter_table_claimed */

void meter_table_reset(void)
{
	memset(meter_table, 0, meter_table_used * sizeof *meter_table);
	memset(&meter_table_claimed, 0, sizeof meter_table_claimed);
	meter_table_used = meter_table_hand = 0;
}

/* meter_table_end returns the end of the used entries. Acquire: pairs with meter_table_new. */
static struct meter *meter_table_end(void) { return meter_table + __atomic_load_n(&meter_table_used, __ATOMIC_ACQUIRE); }

struct meter *meter_table_find(CUcontext context)
{
	const struct meter *end = meter_table_end();
	for (struct meter *m = meter_table; m < end; m++)
		if (meter_is(m, context))
			return m;
	return NULL;
}

/* meter_table_ending returns the meter of a context that is alive or ending, or NULL. */
static struct meter *meter_table_ending(CUcontext context)
{
	struct meter *end = meter_table_end();
	for (struct meter *m = meter_table; context && m < end; m++)
		if (!meter_is_free(m) && __atomic_load_n(&m->handle, __ATOMIC_ACQUIRE) == context)
			return m;
	return NULL;
}

/* meter_table_new gives a meter to a context that has none, or returns NULL. The caller holds
 * meter_table_claimed. */
static struct meter *meter_table_new(CUcontext context, struct device *d, bool force)
{
	struct meter *end = meter_table_end();
	for (struct meter *m = meter_table; m < end; m++)
		if (meter_is_free(m) && meter_assign(m, context, d, METER_IF_FREE))
			return m;
	if (end < meter_table + METER_TABLE_SIZE && meter_assign(end, context, d, METER_IF_FREE)) {
		__atomic_store_n(&meter_table_used, (uint32_t)(end - meter_table) + 1, __ATOMIC_RELEASE);
		return end;
	}
	meter_crowd();
	for (unsigned i = 0; i < METER_TABLE_SIZE; i++) {
		struct meter *m = &meter_table[meter_table_hand++ % METER_TABLE_SIZE];
		if (meter_assign(m, context, d, force ? METER_ANYWAY : METER_IF_IDLE))
			return m;
	}
	return NULL;
}

struct meter *meter_table_of(CUcontext context, struct device *d, bool force)
{
	struct meter *m = meter_table_find(context);
	int cancel;
	if (likely(m != NULL) || !mark_take(&meter_table_claimed, &cancel))
		return m;
	if (!(m = meter_table_find(context)) && !meter_table_ending(context))
		m = meter_table_new(context, d, force);
	mark_give(&meter_table_claimed, cancel);
	return m;
}

bool meter_table_ends(CUcontext context) { return meter_table_ending(context) != NULL; }

void meter_table_context_ends(CUcontext context)
{
	struct meter *m = context ? meter_table_find(context) : NULL;
	if (m)
		meter_context_ends(m);
}

void meter_table_context_lives(CUcontext context)
{
	struct meter *m = meter_table_ending(context);
	if (m)
		meter_context_lives(m);
}

void meter_table_context_ended(CUcontext context)
{
	struct meter *m = meter_table_ending(context);
	if (m)
		meter_context_ended(m);
}

uint64_t meter_table_uncharged(const struct device *d)
{
	uint64_t since = UINT64_MAX;
	const struct meter *end = meter_table_end();
	for (struct meter *m = meter_table; m < end; m++) {
		uint64_t at = meter_uncharged(m, d);
		since = at && at < since ? at : since;
	}
	return since == UINT64_MAX ? 0 : since;
}

void meter_table_stream_ends(CUstream stream)
{
	struct meter *end = meter_table_end();
	/* The default streams end with their contexts. */
	if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD)
		return;
	for (struct meter *m = meter_table; m < end; m++)
		meter_stream_ends(m, stream);
}
