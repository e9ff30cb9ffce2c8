#include "cannot.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "environment.h"
#include "gate.h"
#include "hooks.h"

static mutex cannot_lock;         /* LOCK_CANNOT */
static uint64_t cannot_counts[8]; /* of each bit; guarded by cannot_lock */

/* cannot_bits returns the bits of all counts. The caller holds LOCK_CANNOT. */
static uint64_t cannot_bits(void)
{
	uint64_t bits = 0;
	for (unsigned i = 0; i < sizeof cannot_counts / sizeof *cannot_counts; i++)
		bits |= cannot_counts[i] ? UINT64_C(1) << i : 0;
	return bits;
}

void cannot_show(void)
{
	/* Write the slot under the lock, so that of two threads the later one's bits stay. */
	mutex_lock(&cannot_lock, LOCK_CANNOT);
	region_show_cannot(attach_region(), cannot_bits());
	mutex_unlock(&cannot_lock);
}

/* cannot_change sets the count of a bit to its value plus more, less fewer, and not below 0. */
static void cannot_change(uint64_t bit, uint64_t more, uint64_t fewer)
{
	if (!attach_on())
		return;
	mutex_lock(&cannot_lock, LOCK_CANNOT);
	uint64_t *count = &cannot_counts[__builtin_ctzll(bit)], before = *count;
	*count += more;
	*count -= fewer < *count ? fewer : *count;
	if (!before != !*count)
		region_show_cannot(attach_region(), cannot_bits());
	mutex_unlock(&cannot_lock);
}

void cannot_add(uint64_t bit, uint64_t n) { cannot_change(bit, n, 0); }

void cannot_end(uint64_t bit, uint64_t n) { cannot_change(bit, 0, n); }

bool cannot_begin(uint64_t bit)
{
	if (!attach_on())
		return false;
	cannot_add(bit, 1);
	gate_pass(GATE_WAITS);
	return true;
}

/* cannot_mps reports whether a control daemon of MPS is there, as clients look for it. */
static bool cannot_mps(void)
{
	const char *folder = environment_get("CUDA_MPS_PIPE_DIRECTORY");
	char path[4096];
	struct stat st;
	int n = snprintf(path, sizeof path, "%s/control", folder && *folder ? folder : "/tmp/nvidia-mps");
	return n > 0 && (size_t)n < sizeof path && region_lstat(path, &st);
}

void cannot_look(void)
{
	/* Drivers have the call since version 570. */
	if (!ration_real(CALL_cuCheckpointProcessLock))
		cannot_add(RATION_CANNOT_DRIVER, 1);
	if (cannot_mps())
		cannot_add(RATION_CANNOT_MPS, 1);
}

void cannot_reset(void) { memset(cannot_counts, 0, sizeof cannot_counts); }
