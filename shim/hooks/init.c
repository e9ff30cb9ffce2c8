/* Joining the job: at cuInit, or at a call that comes without it. */
#include "hooks/init.h"

#include "cannot.h"
#include "charge.h"
#include "compute/compute.h"
#include "gate.h"
#include "hugepages.h"
#include "import.h"
#include "interpose.h"
#include "log.h"
#include "overhead.h"
#include "place.h"

/* init_reset clears the state that a fork handed down, in a process that has just opened the
 * region. */
static void init_reset(void)
{
	devices_reset();
	charge_reset();
	import_reset();
	cannot_reset();
	nvml_reset();
	overhead_reset();
	compute_reset();
}

/* init_join joins the job, and returns the state. The driver is initialised. */
static enum attach_state init_join(void)
{
	enum attach_state s = attach_join(init_reset);
	if (s == ATTACH_ON) {
		/* Release: pairs with region_wait_awake. */
		__atomic_store_n(&attach_region()->on_sleep, gate_step, __ATOMIC_RELEASE);
		/* Release: pairs with mutex_wait. */
		__atomic_store_n(&mutex_on_wait, gate_step_for_lock, __ATOMIC_RELEASE);
		hugepages_begin();
		cannot_look();
	}
	return s;
}

static bool shows_machine; /* ration_show_machine was called; atomic */

/* ration_show_machine lets this process see the machine in NVML: all devices and processes, with all
 * memory. Programs that show the whole machine call it. They look for no job, so under a policy
 * looking takes no ration, and is not refused. The sizes are no secret, and it gives no memory:
 * a call that takes memory joins the job. Such a program may be the one that wakes its own job, so it
 * does not wait for that. */
RATION_EXPORT void ration_show_machine(void)
{
	__atomic_store_n(&shows_machine, true, __ATOMIC_RELAXED);
	gate_ignore();
}

static bool init_shows_machine(void) { return __atomic_load_n(&shows_machine, __ATOMIC_RELAXED); }

int cuInit(unsigned flags)
{
	if (init_shows_machine()) /* a call that takes memory joins later, by init_enter */
		return REAL(cuInit, flags);
	/* Report bad settings before the driver spends time to initialise. But join only after
	 * it has: a process without a driver must leave nothing in the region. */
	enum attach_state s = attach_prepare(true);
	if (s == ATTACH_COLD && place_hides() && !interpose_in_driver("getenv", (void *)place_getenv))
		log_warn(
			"the driver shows GPUs that are not this job's: it reads its environment in an unknown way (programs that use them "
			"get no memory)");
	int result = REAL_UNLESS(s == ATTACH_BROKEN ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS, cuInit, flags);
	if (result != CUDA_SUCCESS)
		attach_end_promise();
	else if (s == ATTACH_COLD && init_join() == ATTACH_BROKEN)
		return CUDA_ERROR_OPERATING_SYSTEM;
	return result;
}

int init_join_late(void)
{
	CUcontext current;
	enum attach_state s = attach_state();
	/* If the driver is initialised, the program reached it without our cuInit. If it is not
	 * (in a fork child, for example), the driver's own call will report that. */
	if (s == ATTACH_COLD && REAL(cuCtxGetCurrent, &current) == CUDA_SUCCESS && (s = attach_prepare(false)) == ATTACH_COLD)
		s = init_join();
	return s == ATTACH_BROKEN ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

int init_enter_device(CUdevice ordinal, struct device **out)
{
	int denied = init_enter();
	*out = NULL;
	if (denied || !attach_on())
		return denied;
	return device_of(ordinal, out) < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

bool init_read_only(void) { return !init_shows_machine() && attach_read_only(init_reset); }
