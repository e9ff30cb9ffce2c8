#include "full.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "attach.h"
#include "hooks.h"
#include "log.h"
#include "region/region.h"
#include "region/words.h"

static uint64_t full_last, full_skipped; /* of log_seldom */

/* full_more returns how many lines were left out, in text. */
static const char *full_more(char *text, size_t size)
{
	uint64_t quiet = __atomic_exchange_n(&full_skipped, 0, __ATOMIC_RELAXED);
	text[0] = 0;
	if (quiet)
		snprintf(text, size, "; %llu more since the last such line", (unsigned long long)quiet);
	return text;
}

static bool full_wanted(int result)
{
	return result == CUDA_ERROR_OUT_OF_MEMORY && log_wanted(LOG_WARN) && log_seldom(&full_last, &full_skipped);
}

void full_log(unsigned device, uint64_t bytes, int result)
{
	size_t room = 0, total = 0;
	char a[SIZE_TEXT], f[SIZE_TEXT], t[SIZE_TEXT], o[SIZE_TEXT], sizes[160] = "", more[64];
	if (likely(!full_wanted(result)))
		return;
	if (REAL(cuMemGetInfo_v2, &room, &total) == CUDA_SUCCESS && total >= room) {
		uint64_t ours = attach_region() ? region_used(attach_region(), device) : 0, used = total - room;
		int n = snprintf(sizes, sizeof sizes, ", %s of its %s is free", size_text(room, f), size_text(total, t));
		if (used > ours)
			snprintf(sizes + n, sizeof sizes - (size_t)n, "; others hold %s", size_text(used - ours, o));
	}
	log_warn("out of memory: %s: %s (pid %d) asked for %s of device %u%s; ask for less, or try again when other programs hold less "
		 "(ration ps, nvidia-smi)%s",
		 bytes > room ? "the GPU itself is full" : "the driver refused what the job's limit allows", program_invocation_short_name,
		 (int)getpid(), size_text(bytes, a), device, sizes, full_more(more, sizeof more));
}

void full_log_context(unsigned device, int result)
{
	char more[64];
	if (full_wanted(result))
		log_warn("out of memory: the GPU itself is full: the driver made no context on device %u for %s (pid %d); try again when "
			 "other "
			 "programs hold less (ration ps, nvidia-smi)%s",
			 device, program_invocation_short_name, (int)getpid(), full_more(more, sizeof more));
}
