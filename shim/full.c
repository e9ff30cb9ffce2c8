#include "full.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "attach.h"
#include "device.h"
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

/* full_ask asks the driver how much of a device is free. It returns false if the thread's current context is on
 * another device, or there is none. */
static bool full_ask(unsigned device, size_t *room, size_t *total)
{
	const struct device *d = device_at(device);
	CUdevice ordinal;
	return d && REAL(cuCtxGetDevice, &ordinal) == CUDA_SUCCESS && ordinal == d->ordinal &&
	       REAL(cuMemGetInfo_v2, room, total) == CUDA_SUCCESS && *total >= *room;
}

void full_log(unsigned device, uint64_t bytes, int result)
{
	size_t room = 0, total = 0;
	char asked[SIZE_TEXT], free[SIZE_TEXT], all[SIZE_TEXT], others[SIZE_TEXT], more[64];
	if (likely(!full_wanted(result)))
		return;
	size_text(bytes, asked);
	full_more(more, sizeof more);
	if (!full_ask(device, &room, &total)) {
		log_warn("out of memory: the driver refused %s (pid %d) %s of device %u (ration ps and nvidia-smi show what others hold)%s",
			 program_invocation_short_name, (int)getpid(), asked, device, more);
		return;
	}
	uint64_t ours = attach_region() ? region_used(attach_region(), device) : 0, used = total - room;
	size_text(room, free);
	size_text(total, all);
	if (bytes <= room || bytes > total || used <= ours)
		log_warn("out of memory: the driver refused %s (pid %d) %s of device %u, of which %s of %s is free (ask for less)%s",
			 program_invocation_short_name, (int)getpid(), asked, device, free, all, more);
	else
		log_warn("out of memory: the GPU itself is full: %s (pid %d) asked for %s of device %u, %s of its %s is free; others hold "
			 "%s; ask "
			 "for less, or try again when other programs hold less (ration ps, nvidia-smi)%s",
			 program_invocation_short_name, (int)getpid(), asked, device, free, all, size_text(used - ours, others), more);
}

void full_log_context(unsigned device, int result)
{
	char more[64];
	if (full_wanted(result))
		log_warn("out of memory: the GPU itself is full: the driver made no context on device %u for %s (pid %d); try again when "
			 "other programs hold less (ration ps, nvidia-smi)%s",
			 device, program_invocation_short_name, (int)getpid(), full_more(more, sizeof more));
}
