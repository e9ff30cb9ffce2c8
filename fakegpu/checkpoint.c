#define _GNU_SOURCE
#include "checkpoint.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "control.h"
#include "driver.h"
#include "knobs.h"

enum verb { VERB_NONE, VERB_LOCK, VERB_CHECKPOINT, VERB_RESTORE, VERB_UNLOCK };

static void checkpoint_sleep(uint32_t *word, uint32_t value, long ms)
{
	syscall(SYS_futex, word, FUTEX_WAIT, value, ms > 0 ? &(struct timespec){ms / 1000, ms % 1000 * 1000000} : NULL, NULL, 0);
}

static void checkpoint_wake(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

/* The lower half of a word of the letterbox, to sleep on. All architectures we know are little-endian. */
static uint32_t *low(uint64_t *word) { return (uint32_t *)word; }

static uint64_t milliseconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Waits for the calls and the work that are under way. */
static CUresult checkpoint_lock(uint32_t timeout_ms)
{
	uint64_t begin = milliseconds();
	calls_stop();
	while (calls_inside() || !contexts_idle()) {
		if (timeout_ms > 0 && milliseconds() - begin >= timeout_ms) {
			calls_resume();
			return CUDA_ERROR_NOT_READY;
		}
		nanosleep(&(struct timespec){0, 200000}, NULL);
	}
	return CUDA_SUCCESS;
}

static struct aside aside;
static void *aside_host; /* host memory that stands for what was put aside */
static size_t aside_size;

static uint64_t aside_bytes(void)
{
	uint64_t sum = 0;
	for (unsigned d = 0; d < MAX_DEVICES; d++)
		for (enum kind k = 0; k < KIND_COUNT; k++)
			sum += aside.bytes[d][k];
	return sum;
}

/* Takes as long as to move so many bytes at a speed of so many in a microsecond. */
static void checkpoint_move(uint64_t bytes, uint64_t speed)
{
	uint64_t us = speed > 0 ? bytes / speed : 0;
	nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
}

/* The driver maps host memory for all that it puts aside, by a call that a preloaded library sees.
 * Nothing is in this device memory, so a thousandth serves. */
static CUresult checkpoint_out(void)
{
	if (host_has_managed())
		return CUDA_ERROR_NOT_SUPPORTED;
	control_close();
	machine_put_aside(&aside);
	aside_size = round_up(aside_bytes() / 1024, 2 * MIB);
	aside_host = mmap(NULL, aside_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	checkpoint_move(aside_bytes(), knobs()->out);
	return CUDA_SUCCESS;
}

static CUresult checkpoint_back(void)
{
	if (!machine_take_back(&aside))
		return CUDA_ERROR_OUT_OF_MEMORY;
	control_restore();
	contexts_restart();
	checkpoint_move(aside_bytes(), knobs()->back);
	if (aside_host != MAP_FAILED)
		munmap(aside_host, aside_size);
	return CUDA_SUCCESS;
}

/* Does what a request says in the state it is for, and changes the state. */
static CUresult checkpoint_do(struct letterbox *b, enum verb verb)
{
	static const struct {
		CUprocessState from, to;
	} steps[] = {
		[VERB_LOCK] = {CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED},
		[VERB_CHECKPOINT] = {CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED},
		[VERB_RESTORE] = {CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED},
		[VERB_UNLOCK] = {CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING},
	};
	CUresult result = CUDA_SUCCESS;

	if (b->state == CU_PROCESS_STATE_FAILED)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (b->state != steps[verb].from)
		return CUDA_ERROR_ILLEGAL_STATE;
	switch (verb) {
	case VERB_LOCK: result = checkpoint_lock(b->timeout_ms); break;
	case VERB_CHECKPOINT: result = checkpoint_out(); break;
	case VERB_RESTORE: result = checkpoint_back(); break;
	default: calls_resume(); break;
	}
	if (result == CUDA_SUCCESS)
		store_release(&b->state, steps[verb].to);
	else if (verb == VERB_RESTORE)
		store_release(&b->state, CU_PROCESS_STATE_FAILED); /* the process is lost */
	return result;
}

static void *checkpoint_serve(void *letterbox)
{
	struct letterbox *b = letterbox;
	for (;;) {
		uint64_t request = load_acquire(&b->request), number = request >> 8;
		if ((request & 0xff) == VERB_NONE) {
			checkpoint_sleep(low(&b->request), (uint32_t)request, 0);
			continue;
		}
		uint64_t *answer = &b->answer[number % LETTERBOX_ANSWERS];
		CUresult result = checkpoint_do(b, (enum verb)(request & 0xff));
		store_release(answer, number << 16 | (uint64_t)result);
		store_release(&b->request, number << 8); /* and the next may come */
		checkpoint_wake(low(answer));
	}
	return NULL;
}

void checkpoint_load(void)
{
	sigset_t all, old;
	pthread_t thread;

	if (!knobs()->checkpoint)
		return;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, checkpoint_serve, machine_own_letterbox()) == 0) {
		pthread_detach(thread);
		store_release(&machine_own_letterbox()->open, 1);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* Sets *out to the letterbox of a process; a process of another user cannot be asked. */
static CUresult checkpoint_find(int pid, struct letterbox **out, unsigned *slot, uint64_t *identity)
{
	TRY(driver_ready());
	if (!knobs()->checkpoint)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (pid <= 0 || kill(pid, 0) != 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*out = machine_letterbox((uint32_t)pid, slot, identity);
	return *out != NULL && load_acquire(&(*out)->open) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* Waits for the answer for as long as the process lives, also while it is stopped, as the driver does. */
static CUresult checkpoint_answer(uint64_t *answer, uint64_t number, unsigned slot, uint64_t identity)
{
	for (;;) {
		uint64_t got = load_acquire(answer);
		if (got >> 16 == number)
			return (CUresult)(got & 0xffff);
		if (machine_gone(slot, identity))
			return CUDA_ERROR_OPERATING_SYSTEM;
		checkpoint_sleep(low(answer), (uint32_t)got, 50);
	}
}

static CUresult checkpoint_ask(int pid, enum verb verb, uint32_t timeout_ms)
{
	struct letterbox *b;
	unsigned slot;
	uint64_t identity;

	TRY(checkpoint_find(pid, &b, &slot, &identity));
	uint64_t before = load_acquire(&b->request), number = (before >> 8) + 1;
	if ((before & 0xff) != VERB_NONE)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (verb == VERB_LOCK)
		store_relaxed(&b->timeout_ms, timeout_ms);
	if (!cas_seq_cst(&b->request, &before, number << 8 | (uint64_t)verb))
		return CUDA_ERROR_ILLEGAL_STATE;
	checkpoint_wake(low(&b->request));
	return checkpoint_answer(&b->answer[number % LETTERBOX_ANSWERS], number, slot, identity);
}

API cuCheckpointProcessLock(int pid, const CUcheckpointLockArgs *args)
{
	return checkpoint_ask(pid, VERB_LOCK, args != NULL ? args->timeoutMs : 0);
}

API cuCheckpointProcessCheckpoint(int pid, void *args)
{
	(void)args;
	return checkpoint_ask(pid, VERB_CHECKPOINT, 0);
}

API cuCheckpointProcessRestore(int pid, void *args)
{
	(void)args;
	return checkpoint_ask(pid, VERB_RESTORE, 0);
}

API cuCheckpointProcessUnlock(int pid, void *args)
{
	(void)args;
	return checkpoint_ask(pid, VERB_UNLOCK, 0);
}

API cuCheckpointProcessGetState(int pid, CUprocessState *out)
{
	struct letterbox *b;
	unsigned slot;
	uint64_t identity;

	if (out == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(checkpoint_find(pid, &b, &slot, &identity));
	*out = (CUprocessState)load_acquire(&b->state);
	return CUDA_SUCCESS;
}
