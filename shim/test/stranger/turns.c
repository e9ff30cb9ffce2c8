/* Loads that could exceed the limit together take turns: it is exceeded by one of them, until that is
 * undone. Loads for which there is room do not wait, and a load that does not move is passed over. */
#include "stranger.h"

#define MODULE (100 * MIB)

enum { FIRST_LOOK_NS = 50000 }; /* how long a load that waits for its turn sleeps at first; nothing else sleeps so long */

static uint32_t looks_stopped, look_stops; /* such a load does not go on; one has come there */

__attribute__((visibility("default"))) int nanosleep(const struct timespec *t, struct timespec *left)
{
	while (t->tv_nsec == FIRST_LOOK_NS && load32_acquire(&looks_stopped)) {
		store32_release(&look_stops, 1);
		syscall(SYS_nanosleep, &(struct timespec){0, 1000000}, NULL);
	}
	return (int)syscall(SYS_nanosleep, t, left);
}

static const char large[] = PTX(BIG_100M);

static CUresult load(struct task *t) { return cuModuleLoadData(&t->module, large); }

/* Starts two loads, which are held in the driver with their memory taken. */
static void begin(struct task t[2], CUcontext c)
{
	fakegpu_hold("cuModuleLoadData", 2);
	for (int i = 0; i < 2; i++) {
		t[i] = (struct task){.run = load};
		task_begin(&t[i], c);
	}
}

static void end(struct task t[2], CUresult want)
{
	fakegpu_open("cuModuleLoadData");
	for (int i = 0; i < 2; i++) {
		JOIN(&t[i]);
		EQ(t[i].result, want);
	}
	OK(cuCtxSynchronize());
	WITHIN_LIMIT(0);
	BALANCED(0);
}

static void at_the_limit(void)
{
	struct task t[2];
	CUcontext c = start();
	OK(cuCtxSynchronize());
	set_limit(0, in_use(0) + MODULE - MIB);
	store32_release(&looks_stopped, 1);
	begin(t, c);
	EQ(fakegpu_held("cuModuleLoadData", 1, LONG), 1);
	for (unsigned ms = 0; ms < LONG && !load32_acquire(&look_stops); ms++)
		pause_ms(1);
	EQ(load32_acquire(&look_stops), 1);
	EQ(fakegpu_held("cuModuleLoadData", 2, 0), 1);
	CHECK(in_use(0) <= limit_of(0) + MODULE);
	store32_release(&looks_stopped, 0);
	fakegpu_open("cuModuleLoadData");
	end(t, CUDA_ERROR_OUT_OF_MEMORY);
}

static void passed_over(void)
{
	struct task t[2], third = {.run = load};
	CUcontext c = start();
	OK(cuCtxSynchronize());
	set_limit(0, in_use(0) + MODULE - MIB);
	begin(t, c);
	EQ(fakegpu_held("cuModuleLoadData", 2, LONG), 2); /* the second has waited for long enough */
	end(t, CUDA_ERROR_OUT_OF_MEMORY);
	task_begin(&third, c);
	JOIN(&third);
	EQ(third.result, CUDA_ERROR_OUT_OF_MEMORY);
	BALANCED(0);
}

static void with_room(void)
{
	struct task t[2];
	CUcontext c = start();
	OK(cuCtxSynchronize());
	set_limit(0, in_use(0) + 2 * MODULE + MIB);
	store32_release(&looks_stopped, 1); /* so that one that waits would not come */
	begin(t, c);
	EQ(fakegpu_held("cuModuleLoadData", 2, LONG), 2);
	store32_release(&looks_stopped, 0);
	end(t, CUDA_SUCCESS);
}

/* A module that is measured while another one is being undone is charged for both, until the other has gone: nothing else need be
 * called for that. */
static void undone(void)
{
	struct task t = {.run = load};
	CUmodule m;
	CUcontext c = start();
	OK(cuCtxSynchronize());
	set_limit(0, in_use(0) + MODULE - MIB);
	fakegpu_hold("cuModuleUnload:before", 1);
	task_begin(&t, c);
	EQ(fakegpu_held("cuModuleUnload:before", 1, LONG), 1);
	set_limit(0, in_use(0) + 4 * MODULE);
	OK(cuModuleLoadData(&m, large));
	fakegpu_open("cuModuleUnload:before");
	JOIN(&t);
	EQ(t.result, CUDA_ERROR_OUT_OF_MEMORY);
	SAME();
	EQ(held(RATION_MODULE), MODULE);
}

RUN_PARTS(true, {"at_the_limit", at_the_limit}, {"passed_over", passed_over}, {"with_room", with_room}, {"undone", undone})
