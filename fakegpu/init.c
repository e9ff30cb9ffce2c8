#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "checkpoint.h"
#include "driver.h"
#include "knobs.h"
#include "space.h"

static void init_child_of_fork(void)
{
	if (driver_state == DRIVER_COLD)
		return; /* nothing was shared yet: the child may start a driver of its own */
	store_release(&driver_state, DRIVER_FORKED);
	machine_forked();
	calls_forked();
}

static CUresult init(unsigned flags)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static bool at_fork;
	CUresult r = CUDA_SUCCESS;

	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	if (driver_state == DRIVER_FORKED) {
		r = CUDA_ERROR_NOT_INITIALIZED;
	} else if (driver_state == DRIVER_COLD) {
		if (!at_fork)
			at_fork = pthread_atfork(NULL, NULL, init_child_of_fork) == 0;
		if (machine_attach(true) != 0) {
			r = CUDA_ERROR_SYSTEM_NOT_READY;
		} else {
			r = devices_load();
			if (r == CUDA_SUCCESS) {
				store_release(&driver_state, DRIVER_READY);
				checkpoint_load();
			}
		}
	}
	pthread_mutex_unlock(&lock);
	return r;
}

API cuInit(unsigned flags)
{
	faults_load();
	work_load();
	ENTRY(cuInit, init(flags));
}

API cuDriverGetVersion(int *version)
{
	if (version == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*version = CUDA_DRIVER_VERSION;
	return CUDA_SUCCESS;
}

/* The driver's private tables have no public names; there are none here. */
API cuGetExportTable(const void **table, const CUuuid *id)
{
	(void)id;
	if (table != NULL)
		*table = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

/* The bytes themselves need no returning: the record's lock ends with the process. */
__attribute__((destructor)) static void init_at_end(void)
{
	unsigned long count = 0;
	uint64_t bytes = 0;

	if (driver_state != DRIVER_READY)
		return;
	space_count(1 << BLOCK_DATA | 1 << BLOCK_POOL, &count, &bytes);
	if (count > 0)
		report_leak("%lu allocations of %llu bytes were never freed", count, (unsigned long long)bytes);
}
