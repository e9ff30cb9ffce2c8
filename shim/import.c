#include "import.h"

#include <string.h>

#include "attach.h"
#include "log.h"
#include "region/failpoint.h"
#include "region/words.h"

/* LOCK_IMPORT: protects the arrays below, and is held while the region's locks are replaced. */
static mutex import_lock;

static uint32_t import_count; /* imports that exist or are under way; atomic */

/* The makers of imported memory: the byte that each has locked, and its device. ended: before the last
 * reading began it had ended, and all descriptors were closed. */
static uint64_t import_bytes[RATION_SLOTS];
static struct {
	unsigned device;
	bool ended;
} import_makers[RATION_SLOTS];
static unsigned import_known; /* makers in the arrays */
static bool import_warned;

bool import_any(void) { return __atomic_load_n(&import_count, __ATOMIC_RELAXED); }

/* import_show shows these makers in the region, and no others. The caller holds LOCK_IMPORT. */
static void import_show(void)
{
	if (region_show_imports(attach_region(), import_bytes, import_known) || import_warned)
		return;
	import_warned = true;
	log_warn(
		"imported memory cannot be shown to other processes: if its maker ends, it is charged only when this process makes a call");
}

static void import_add(uint64_t byte, unsigned device)
{
	unsigned i = 0;
	while (i < import_known && import_bytes[i] != byte)
		i++;
	if (i == RATION_SLOTS)
		return; /* each of them would be another process of the job */
	import_bytes[i] = byte;
	import_makers[i].device = device;
	import_makers[i].ended = false;
	if (i < import_known)
		return;
	import_known++;
	import_show();
}

void import_begin(int fd)
{
	/* Before the lock is taken: a thread that ends another import must not drop this one's maker. */
	__atomic_fetch_add(&import_count, 1, __ATOMIC_SEQ_CST);
	mutex_lock(&import_lock, LOCK_IMPORT);
	region_find_exporters(attach_region(), fd, import_add);
	mutex_unlock(&import_lock);
	FAILPOINT(IMPORT_SHOWN);
}

void import_end(void)
{
	/* In a fork child there are none, but it has its parent's handles. */
	if (!import_any() || __atomic_sub_fetch(&import_count, 1, __ATOMIC_SEQ_CST))
		return;
	mutex_lock(&import_lock, LOCK_IMPORT);
	if (!import_any() && import_known) {
		import_known = 0;
		import_show();
	}
	mutex_unlock(&import_lock);
}

void import_before_reading(unsigned device)
{
	if (!import_any())
		return;
	mutex_lock(&import_lock, LOCK_IMPORT);
	for (unsigned i = 0; i < import_known; i++)
		if (import_makers[i].device == device)
			import_makers[i].ended = region_unlent(attach_region(), import_bytes[i]);
	mutex_unlock(&import_lock);
}

void import_after_reading(unsigned device)
{
	unsigned kept = 0;
	if (!import_any())
		return;
	FAILPOINT(IMPORT_CHARGED);
	mutex_lock(&import_lock, LOCK_IMPORT);
	for (unsigned i = 0; i < import_known; i++) {
		if (import_makers[i].ended && import_makers[i].device == device)
			continue;
		import_bytes[kept] = import_bytes[i];
		import_makers[kept++] = import_makers[i];
	}
	bool dropped = kept != import_known;
	import_known = kept;
	if (dropped) {
		import_show();
		region_reap_lent(attach_region());
	}
	mutex_unlock(&import_lock);
}

void import_reset(void)
{
	memset(&import_lock, 0, sizeof import_lock); /* another thread may have had it at the fork */
	import_count = import_known = 0;
}
