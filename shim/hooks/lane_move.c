/* The thread that moves the blocks of the lane: lane.h. It waits on a word of this process's slot.
 * Between its requests it holds nothing and calls nothing. It has all signals blocked, does not exist
 * in a forked child, and ends with the process; if the main thread ends by pthread_exit, it keeps the
 * process alive, as the driver's own threads do. */
#include "hooks/lane_move.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "attach.h"
#include "gate.h"
#include "hooks.h"
#include "hooks/context_table.h"
#include "hooks/lane.h"
#include "interpose.h"
#include "limit_parse.h"
#include "log.h"
#include "region/atomics.h"

#ifndef MADV_DONTFORK
#define MADV_DONTFORK 10
#endif

enum { LANE_THREADS = 8, LANE_BUFFERS = 2 };
static const uint64_t LANE_PIECE = UINT64_C(32) << 20; /* copied at a time, through a pinned buffer */
static const uint64_t LANE_HUGE = UINT64_C(2) << 20;   /* a huge page */

struct lane_block {
	CUdeviceptr at;
	uint64_t bytes;
	CUmemGenericAllocationHandle handle; /* 0: not on the device */
	char *host;                          /* where its copy is */
	bool out;                            /* the copy counts, not what is on the device */
};

struct lane_piece {
	CUdeviceptr at;
	char *host;
	uint64_t bytes;
};

/* What the thread has put aside, or is about to. Only the thread uses it. */
static struct {
	struct lane_block *blocks;
	uint64_t count, room;
	char *memory; /* of all copies */
	uint64_t size;
} lane_aside;

static bool lane_is_out; /* lane_aside has a block that is out */

/* lane_memory returns host memory that a fork does not copy, or NULL. */
static void *lane_memory(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	madvise(at, bytes, MADV_DONTFORK);
	return at;
}

/* A move of many pieces by several threads. */
struct lane_move {
	struct lane_piece *pieces;
	uint64_t count;
	uint64_t largest;
	uint64_t next; /* the first piece that no thread has taken; atomic, as are failed and left */
	bool out;
	bool failed;
	uint32_t left; /* threads that have not finished; a futex */
	CUcontext context;
	uint64_t *lane, word; /* it ends early if the lane has another word than this */
};

struct lane_buffer {
	CUstream stream;
	char *pinned;
	const struct lane_piece *piece; /* under way; NULL: none */
};

/* lane_settle waits for the buffer's copy. */
static bool lane_settle(const struct lane_move *m, struct lane_buffer *b)
{
	if (!b->piece)
		return true;
	bool good = REAL(cuStreamSynchronize, b->stream) == CUDA_SUCCESS;
	if (good && m->out)
		memcpy(b->piece->host, b->pinned, b->piece->bytes);
	b->piece = NULL;
	return good;
}

static bool lane_copy(const struct lane_move *m, struct lane_buffer *b, const struct lane_piece *piece)
{
	if (!lane_settle(m, b))
		return false;
	b->piece = piece;
	if (m->out)
		return REAL(cuMemcpyDtoHAsync_v2, b->pinned, piece->at, piece->bytes, b->stream) == CUDA_SUCCESS;
	memcpy(b->pinned, piece->host, piece->bytes);
	return REAL(cuMemcpyHtoDAsync_v2, piece->at, b->pinned, piece->bytes, b->stream) == CUDA_SUCCESS;
}

/* lane_stopped reports whether the move was withdrawn, or the process ends: then the driver may be
 * ending, too. */
static bool lane_stopped(const struct lane_move *m) { return load_acquire(m->lane) != m->word || !attach_on(); }

static bool lane_copy_all(struct lane_move *m, struct lane_buffer buffers[LANE_BUFFERS])
{
	bool good = true;
	for (unsigned turn = 0; good && !__atomic_load_n(&m->failed, __ATOMIC_RELAXED); turn++) {
		uint64_t i = __atomic_fetch_add(&m->next, 1, __ATOMIC_RELAXED);
		if (i >= m->count)
			break;
		good = !lane_stopped(m) && lane_copy(m, &buffers[turn % LANE_BUFFERS], &m->pieces[i]);
	}
	for (unsigned i = 0; i < LANE_BUFFERS; i++)
		good &= lane_settle(m, &buffers[i]);
	return good;
}

/* lane_copy_part is the part of one thread. */
static void lane_copy_part(struct lane_move *m)
{
	struct lane_buffer buffers[LANE_BUFFERS] = {{NULL, NULL, NULL}};
	bool good = REAL(cuCtxSetCurrent, m->context) == CUDA_SUCCESS;
	for (unsigned i = 0; good && i < LANE_BUFFERS; i++)
		good = REAL(cuStreamCreate, &buffers[i].stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
		       REAL(cuMemAllocHost_v2, (void **)&buffers[i].pinned, m->largest) == CUDA_SUCCESS;
	if (!good || !lane_copy_all(m, buffers))
		__atomic_store_n(&m->failed, true, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < LANE_BUFFERS; i++) {
		if (buffers[i].pinned)
			REAL(cuMemFreeHost, buffers[i].pinned);
		if (buffers[i].stream)
			REAL(cuStreamDestroy_v2, buffers[i].stream);
	}
	REAL(cuCtxSetCurrent, NULL);
}

static void *lane_copier(void *move)
{
	struct lane_move *m = move;
	lane_copy_part(m);
	/* Release: the lane's thread sees the copies. The last access to m. */
	uint32_t *left = &m->left;
	__atomic_fetch_sub(left, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, left, 1 /* FUTEX_WAKE */ | 128 /* FUTEX_PRIVATE_FLAG */, 1, NULL, NULL, 0);
	return NULL;
}

/* lane_start_thread starts a thread with all signals blocked, and returns whether it runs. The
 * functions are looked up: a program that uses CUDA has them, and this library needs no others of the
 * library of threads. */
static bool lane_start_thread(void *(*run)(void *), void *arg)
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	int (*detach)(pthread_t);
	/* Not the C library's own signals: setuid in another thread waits until all have handled one. */
	uint64_t all = ~(UINT64_C(3) << 31), before = 0;
	pthread_t thread;
	*(void **)&create = interpose_find("pthread_create");
	*(void **)&detach = interpose_find("pthread_detach");
	if (!create || !detach || syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all) != 0)
		return false;
	bool started = create(&thread, NULL, run, arg) == 0;
	if (started)
		detach(thread);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
	return started;
}

/* lane_threads returns how many threads move a number of pieces. */
static unsigned lane_threads(uint64_t pieces)
{
	cpu_set_t may;
	uint64_t n = sched_getaffinity(0, sizeof may, &may) == 0 ? (uint64_t)CPU_COUNT(&may) : 1;
	n = n < LANE_THREADS ? n : LANE_THREADS;
	return (unsigned)(n < pieces ? n : pieces);
}

/* lane_run_move copies all pieces, and returns whether it did. This thread takes part: if no other can
 * be started, it does all. */
static bool lane_run_move(struct lane_move *m)
{
	unsigned threads = lane_threads(m->count);
	uint32_t left;
	if (!m->count)
		return true;
	m->left = 0;
	for (unsigned i = 1; i < threads; i++) {
		__atomic_fetch_add(&m->left, 1, __ATOMIC_RELAXED);
		if (!lane_start_thread(lane_copier, m)) {
			__atomic_fetch_sub(&m->left, 1, __ATOMIC_RELAXED);
			break;
		}
	}
	lane_copy_part(m);
	/* Acquire: pairs with the release in lane_copier. */
	while ((left = __atomic_load_n(&m->left, __ATOMIC_ACQUIRE)))
		syscall(SYS_futex, &m->left, 0 /* FUTEX_WAIT */ | 128, left, NULL, NULL, 0);
	return !m->failed;
}

/* lane_move copies the blocks out, or those that are out back. */
static bool lane_move_blocks(uint64_t *lane, uint64_t word, bool out)
{
	struct lane_move m = {.out = out, .lane = lane, .word = word, .context = contexts_any()};
	uint64_t most = lane_aside.size / LANE_PIECE + lane_aside.count, room = most * sizeof *m.pieces;
	if (!most)
		return true;
	m.pieces = lane_memory(room);
	if (!m.pieces)
		return false;
	for (uint64_t i = 0; i < lane_aside.count; i++) {
		const struct lane_block *b = &lane_aside.blocks[i];
		for (uint64_t done = 0; (out || b->out) && done < b->bytes; done += LANE_PIECE) {
			uint64_t rest = b->bytes - done, bytes = rest < LANE_PIECE ? rest : LANE_PIECE;
			m.pieces[m.count++] = (struct lane_piece){b->at + done, b->host + done, bytes};
			m.largest = bytes > m.largest ? bytes : m.largest;
		}
	}
	bool good = m.context && lane_run_move(&m);
	munmap(m.pieces, room);
	return good;
}

/* lane_forget frees the host memory. */
static void lane_forget(void)
{
	if (lane_aside.memory)
		munmap(lane_aside.memory, lane_aside.size + LANE_HUGE);
	if (lane_aside.blocks)
		munmap(lane_aside.blocks, lane_aside.room * sizeof *lane_aside.blocks);
	memset(&lane_aside, 0, sizeof lane_aside);
	lane_is_out = false;
}

static bool lane_count_block(struct alloc_record *r, void *arg)
{
	(void)r, (void)arg;
	lane_aside.room++;
	return true;
}

static bool lane_add_block(struct alloc_record *r, void *arg)
{
	(void)arg;
	if (lane_aside.count < lane_aside.room) {
		lane_aside.blocks[lane_aside.count++] = (struct lane_block){.at = r->key, .bytes = r->bytes, .handle = r->other};
		lane_aside.size += r->bytes;
	}
	return true;
}

/* lane_prepare lists the blocks, and makes host memory for them. No call is under way that could
 * change them. It returns false if there is no memory. */
static bool lane_prepare(void)
{
	lane_forget();
	alloc_table_sweep(&lane_blocks, lane_count_block, NULL);
	if (!lane_aside.room)
		return true;
	lane_aside.blocks = lane_memory(lane_aside.room * sizeof *lane_aside.blocks);
	if (!lane_aside.blocks)
		return false;
	alloc_table_sweep(&lane_blocks, lane_add_block, NULL);
	lane_aside.memory = lane_memory(lane_aside.size + LANE_HUGE);
	if (!lane_aside.memory)
		return false;
	madvise(lane_aside.memory, lane_aside.size + LANE_HUGE, MADV_HUGEPAGE);
	char *host = (char *)(((uintptr_t)lane_aside.memory + LANE_HUGE - 1) / LANE_HUGE * LANE_HUGE);
	for (uint64_t i = 0; i < lane_aside.count; host += lane_aside.blocks[i++].bytes)
		lane_aside.blocks[i].host = host;
	return true;
}

/* lane_give_back returns the blocks to the driver, after all are copied. A block that the driver does
 * not take stays, and the driver's own checkpoint moves it. */
static void lane_give_back(void)
{
	for (uint64_t i = 0; i < lane_aside.count && attach_on(); i++) {
		struct lane_block *b = &lane_aside.blocks[i];
		lane_is_out = true;
		b->out = lane_unmap(b->at, b->bytes, b->handle);
		if (b->out)
			b->handle = 0;
	}
}

static void lane_log(const char *what, uint64_t since)
{
	char size[SIZE_TEXT];
	log_info("%s %s in %llu blocks in %llu ms, with %u threads", what, size_text(lane_aside.size, size),
		 (unsigned long long)lane_aside.count, (unsigned long long)(log_clock() - since), lane_threads(UINT64_MAX));
}

/* lane_drain waits until no call is inside the driver and the device has done all work. It returns
 * false if the request was withdrawn. */
static bool lane_drain(uint64_t *lane, uint64_t word)
{
	while (!gate_empty()) {
		if (load_acquire(lane) != word || !attach_on())
			return false;
		region_lane_wait(lane, word, 1000000);
	}
	if (load_acquire(lane) != word || !attach_on())
		return false;
	contexts_synchronise(); /* a context that has failed has nothing to save */
	return true;
}

static void lane_out(uint64_t *lane, uint64_t word)
{
	uint64_t leaving = lane_with(word, RATION_LANE_DONE, RATION_LANE_LEAVING), since = log_clock();
	/* Draining becomes leaving only in the same request: the wait for the device counts for no other. */
	if (!lane_drain(lane, word) || !region_lane_change(lane, word, leaving))
		return;
	unsigned why = !lane_prepare()                         ? RATION_LANE_NO_MEMORY
		       : lane_move_blocks(lane, leaving, true) ? RATION_LANE_DONE
							       : RATION_LANE_FAILED;
	if (why) {
		lane_forget();
		region_lane_change(lane, leaving, lane_with(leaving, why, RATION_LANE_IN));
		return;
	}
	lane_give_back();
	lane_log("put aside", since);
	region_lane_change(lane, leaving, lane_with(leaving, RATION_LANE_DONE, RATION_LANE_OUT));
}

static bool lane_set_handle(struct alloc_record *r, void *handle)
{
	r->other = *(const CUmemGenericAllocationHandle *)handle;
	return true;
}

/* lane_make_room makes all blocks that are out on the device again. */
static unsigned lane_make_room(void)
{
	for (uint64_t i = 0; i < lane_aside.count; i++) {
		struct lane_block *b = &lane_aside.blocks[i];
		if (!b->out || b->handle)
			continue;
		int result = attach_on() ? lane_map(b->at, b->bytes, &b->handle) : CUDA_ERROR_NOT_INITIALIZED;
		if (result != CUDA_SUCCESS) {
			b->handle = 0;
			return result == CUDA_ERROR_OUT_OF_MEMORY ? RATION_LANE_NO_ROOM : RATION_LANE_FAILED;
		}
	}
	return RATION_LANE_DONE;
}

static void lane_in(uint64_t *lane, uint64_t word)
{
	uint64_t since = log_clock();
	struct alloc_record r;
	unsigned why = lane_make_room();
	if (!why && !lane_move_blocks(lane, word, false))
		why = RATION_LANE_FAILED;
	if (!why) {
		for (uint64_t i = 0; i < lane_aside.count; i++)
			alloc_table_change(&lane_blocks, lane_aside.blocks[i].at, lane_set_handle, &lane_aside.blocks[i].handle, &r);
		lane_log("brought back", since);
		lane_forget();
	}
	if (attach_on())
		region_lane_change(lane, word, lane_with(word, why, why ? RATION_LANE_OUT : RATION_LANE_IN));
}

/* lane_do does what the word asks for. attach_leave waits until it has stopped. */
static void lane_do(uint64_t *lane, uint64_t word)
{
	struct attach_page *p = __atomic_load_n(&attach_page, __ATOMIC_ACQUIRE);
	__atomic_store_n(&p->moving, 1, __ATOMIC_SEQ_CST);
	if (attach_on()) {
		if (lane_state(word) == RATION_LANE_DRAINING)
			lane_out(lane, word);
		else
			lane_in(lane, word);
	}
	__atomic_store_n(&p->moving, 0, __ATOMIC_SEQ_CST);
}

/* lane_show shows the state of the lane in a new slot. */
static void lane_show(void)
{
	uint64_t *lane = region_lane(attach_region());
	uint64_t word = lane ? load_acquire(lane) : 0;
	if (lane && lane_state(word) == RATION_LANE_NONE)
		region_lane_change(lane, word, lane_with(word, RATION_LANE_DONE, lane_is_out ? RATION_LANE_OUT : RATION_LANE_IN));
}

static void *lane_run(void *unused)
{
	(void)unused;
	while (attach_on()) {
		uint64_t *lane = region_lane(attach_region());
		if (!lane) { /* this process is about to get another slot */
			nanosleep(&(struct timespec){0, 10000000}, NULL);
			continue;
		}
		uint64_t word = load_acquire(lane);
		switch (lane_state(word)) {
		case RATION_LANE_NONE: lane_show(); break;
		case RATION_LANE_DRAINING:
		case RATION_LANE_COMING: lane_do(lane, word); break;
		/* It looks again each second: this process may have got another slot. */
		default: region_lane_wait(lane, word, 999999999); break;
		}
	}
	return NULL;
}

bool lane_start(void) { return lane_start_thread(lane_run, NULL); }
