/* Random sequences of every call there is, against the driver's own books: by one
 * thread, compared after every step; and by several processes of several threads,
 * some of them killed, compared whenever all stand still. Calls fail at random too.
 *
 * RATION_TEST_SEED repeats a run: exactly, where one thread walks. RATION_TEST_TRACE
 * says every call. RATION_TEST_WALK adds to what walks do (walk/walker.h). */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>

#include "walk/walk.h"

enum { PROCESSES = 4, WALKERS = 3, ROUNDS = 45, STEPS = 150, ALONE = 20, ALONE_STEPS = 500, SHARED_FD = 90, MAIL_FD = 91 };

/* What a process ends with for which the job has no room left. */
enum { FULL = 3 };

struct report {
	uint32_t ready;
	uint32_t walked; /* the last round whose steps are done */
	uint32_t looked; /* the last round after which this process has taken a reading */
	uint32_t round;  /* the last one that this is about */
	uint32_t failed, passed;
	uint32_t exact;          /* no destroyed pool still has memory */
	uint64_t truth[DEVICES]; /* what the driver says we hold */
	uint64_t overhead;       /* of device 0: booked, whether it fitted or not */
	uint64_t away[DEVICES];
	uint64_t lent[DEVICES]; /* released by us; there are descriptors of it */
};

/* Between the processes; every word has one writer. */
static struct shared {
	uint32_t round, calm, stop;
	uint32_t still;                       /* the round after which all stand still */
	uint32_t charged;                     /* the round after which all stand still and have taken a reading */
	uint32_t leave;                       /* after the last comparison */
	uint32_t ask, answer;                 /* of the watcher */
	uint64_t total[DEVICES], most;        /* its answer, and the most it saw of device 0 in this round */
	struct fakegpu_shared parts[DEVICES]; /* its answer, too */
	struct report report[PROCESSES];
} *shared;

static struct walker walkers[WALKERS];
static pthread_barrier_t barrier;

static uint32_t get(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void set(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

static uint64_t mix(uint64_t seed, uint64_t by) { return (seed + by * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull | 1; }

/* Bytes of managed memory on a device, or charged as if they were. */
static uint64_t managed(int device)
{
	uint64_t sum = 0;
	for (int i = 0; i < HELD * all.count; i++) {
		const struct thing *t = &all.walkers[i / HELD].held[i % HELD];
		sum += t->kind == MANAGED && t->device == device ? units_for(t->size) * RATION_UNIT : 0;
	}
	return sum;
}

/* Our count of this process is the driver's, by kind; managed memory that is not on
 * the device is charged all the same, and so is what a destroyed pool held until the
 * last of it is freed. Contexts and modules are told by the driver's count: exactly
 * where nothing else happens at that moment, and otherwise so that no less is counted
 * than there is once the count was read again. What was lent is charged at least, and at
 * most what the driver has for no process; what was adopted shows as overhead. Managed memory,
 * which is charged wherever it is, can hide that this comes or goes. True if all is so. */
static bool agree(bool exact)
{
	if (!all.alone || all.imported)
		look_again();
	unsigned before = checks_failed;
	for (int d = 0; d < DEVICES; d++) {
		struct ration_usage f = usage_of((unsigned)d);
		struct fakegpu_shared s;
		uint64_t truth[3];
		for (int k = 0; k < 3; k++)
			EQ(fakegpu_truth_kind(d, (enum fakegpu_kind)k, &truth[k], NULL), 0);
		EQ(fakegpu_shared(d, &s), 0);
		truth[FAKEGPU_DATA] += all.away[d] + s.lent - s.adopted;
		/* A context that was refused and could not be ended shows as overhead, and so does
         * the module of a library; and what other threads' requests hid meanwhile. */
		if (all.strict && exact) {
			uint64_t seen = f.kind[RATION_CONTEXT] + f.kind[RATION_MODULE] + f.kind[RATION_OVERHEAD],
				 want = truth[FAKEGPU_CONTEXT] + truth[FAKEGPU_MODULE] + s.adopted,
				 wrong = seen > want ? seen - want : want - seen;
			if (!all.imported || wrong > managed(d))
				EQ(seen, want);
			/* Memory that another process's call makes ours, while one of them is made, is charged to it. */
			if (all.alone || !all.imported)
				CHECK(f.kind[RATION_CONTEXT] <= truth[FAKEGPU_CONTEXT] && f.kind[RATION_MODULE] <= truth[FAKEGPU_MODULE]);
		} else {
			CHECK(f.total + all.away[d] >= truth[FAKEGPU_CONTEXT] + truth[FAKEGPU_MODULE] + truth[FAKEGPU_DATA] + s.adopted);
		}
		if (exact && s.unlisted == s.lent)
			EQ(f.kind[RATION_DATA], truth[FAKEGPU_DATA]);
		else
			CHECK(f.kind[RATION_DATA] >= truth[FAKEGPU_DATA]);
		if (exact)
			CHECK(f.kind[RATION_DATA] <= truth[FAKEGPU_DATA] + s.unlisted - s.lent);
		EQ(f.total, f.kind[RATION_CONTEXT] + f.kind[RATION_MODULE] + f.kind[RATION_DATA] + f.kind[RATION_OVERHEAD]);
	}
	return checks_failed == before;
}

static void begin(int count)
{
	all.also = also_read();
	all.walkers = walkers;
	all.count = count;
	OK(cuInit(0));
	for (int d = 0; d < DEVICES; d++) {
		CUresult r = cuDevicePrimaryCtxRetain(&all.primary[d], d);
		if (r == CUDA_ERROR_OUT_OF_MEMORY)
			exit(FULL);
		OK(r);
		all.contexts[d] = 1;
	}
	OK(cuCtxSetCurrent(all.primary[0]));
}

/* Alone: after every step. */
static int walk(uint64_t seed)
{
	struct walker *w = &walkers[0];
	unsigned reaped; /* of processes that have left */
	w->random = seed;
	all.alone = all.strict = true;
	begin(1);
	for (int i = 0; i < ALONE_STEPS; i++) {
		step(w, -1);
		if (!agree(!all.settling)) {
			fprintf(stderr, "after step %d\n", i);
			break;
		}
		EQ(region_reap(region_here(), &reaped), REGION_OK);
		for (unsigned d = 0; d < DEVICES; d++)
			EQ(region_used(region_here(), d), usage_of(d).total);
		uint64_t truth = everybody();
		CHECK(truth <= limit_bytes(region_limit(region_here(), 0)));
	}
	walk_home(w);
	OK(cuCtxSetCurrent(all.primary[0]));
	while (cuCtxSynchronize() != CUDA_SUCCESS)
		;
	CUmemoryPool pool;
	for (int d = 0; d < DEVICES; d++) {
		OK(cuDeviceGetDefaultMemPool(&pool, d));
		while (cuMemPoolTrimTo(pool, 0) != CUDA_SUCCESS)
			;
		OK(cuDeviceGraphMemTrim(d));
		EQ(usage_of((unsigned)d).kind[RATION_DATA], 0);
		EQ(usage_of((unsigned)d).kind[RATION_MODULE], 0);
	}
	agree(true);
	EQ(w->wrong, 0);
	EQ(fakegpu_errors(), 0);
	shared->report[0].passed = checks_passed;
	return checks_failed > 0;
}

/* Among others: at the end of every round. */

static void *walks(void *arg)
{
	struct walker *w = arg;
	for (;;) {
		pthread_barrier_wait(&barrier);
		if (get(&shared->round) > ROUNDS)
			return NULL;
		for (int i = 0; i < STEPS; i++)
			step(w, MAIL_FD + 2 * w->process + 1);
		pthread_barrier_wait(&barrier);
	}
}

/* A walker of a priority of its own, on the CPU of all the others. False where that is not
 * allowed. */
static bool begin_realtime(pthread_t *t, struct walker *w)
{
	pthread_attr_t a;
	cpu_set_t allowed, one;
	int cpu = 0;
	sched_getaffinity(0, sizeof allowed, &allowed);
	while (!CPU_ISSET(cpu, &allowed))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	pthread_attr_init(&a);
	pthread_attr_setinheritsched(&a, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&a, SCHED_FIFO);
	pthread_attr_setschedparam(&a, &(struct sched_param){.sched_priority = 1 + w->number});
	pthread_attr_setaffinity_np(&a, sizeof one, &one);
	return pthread_create(t, &a, walks, w) == 0;
}

static void wait_while(const uint32_t *p, uint32_t is)
{
	while (get(p) == is)
		usleep(200);
}

static void wait_until(const uint32_t *p, uint32_t is)
{
	while (get(p) != is)
		usleep(200);
}

static void tell(struct report *r, uint32_t round)
{
	unsigned long wrong = 0;
	agree(all.orphans == 0);
	r->exact = all.orphans == 0 && all.strict;
	r->overhead = usage_of(0).kind[RATION_OVERHEAD];
	for (int i = 0; i < WALKERS; i++)
		wrong += walkers[i].wrong;
	EQ(wrong, 0);
	EQ(fakegpu_errors(), 0);
	for (int d = 0; d < DEVICES; d++) {
		struct fakegpu_shared s;
		EQ(fakegpu_truth(d, &r->truth[d], NULL), 0);
		EQ(fakegpu_shared(d, &s), 0);
		r->away[d] = all.away[d];
		r->lent[d] = s.lent;
	}
	r->failed = checks_failed;
	r->passed = checks_passed;
	set(&r->round, round);
}

static int work(int me, uint64_t seed)
{
	struct report *r = &shared->report[me];
	pthread_t t[WALKERS];
	pthread_attr_t small;
	uint32_t round = get(&r->round);
	all.processes = PROCESSES;
	all.strict = me % 2 == 0;
	for (int i = 0; i < PROCESSES; i++)
		all.mail[i] = MAIL_FD + 2 * i;
	begin(WALKERS);
	look_again();
	region_here();
	if (also(CLOSE))
		close(STDIN_FILENO); /* what is opened next has its number */
	set(&r->ready, 1);
	pthread_barrier_init(&barrier, NULL, WALKERS + 1);
	pthread_attr_init(&small);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	EQ(pthread_attr_setstacksize(&small, (size_t)PTHREAD_STACK_MIN), 0);
#endif
	for (int i = 0; i < WALKERS; i++) {
		walkers[i] = (struct walker){.random = mix(seed, (uint64_t)i + 1), .process = me, .number = i};
		if (!also(REALTIME) || !begin_realtime(&t[i], &walkers[i]))
			EQ(pthread_create(&t[i], i % 2 ? &small : NULL, walks, &walkers[i]), 0);
	}
	while (round <= ROUNDS) {
		wait_while(&shared->round, round);
		round = get(&shared->round);
		all.calm = get(&shared->calm);
		pthread_barrier_wait(&barrier);
		if (round <= ROUNDS)
			pthread_barrier_wait(&barrier);
		for (int i = 0; i < WALKERS && round > ROUNDS; i++)
			pthread_join(t[i], NULL);
		for (int i = 0; i < WALKERS && round > ROUNDS && me % 2; i++)
			walk_home(&walkers[i]);
		OK(cuCtxSetCurrent(all.primary[0]));
		while (cuCtxSynchronize() != CUDA_SUCCESS)
			;
		set(&r->walked, round);
		wait_until(&shared->still, round);
		look_again();
		set(&r->looked, round);
		wait_until(&shared->charged, round);
		tell(r, round);
	}
	wait_while(&shared->leave, 0);
	return 0;
}

/* Looks at the driver's books all the time, without memory of its own. */
static int watch(void)
{
	uint32_t round = 0;
	OK(cuInit(0));
	while (!get(&shared->stop)) {
		if (get(&shared->round) != round) {
			round = get(&shared->round);
			__atomic_store_n(&shared->most, 0, __ATOMIC_RELAXED);
		}
		uint64_t now = everybody(); /* after the round has begun: it is of this one */
		if (now > shared->most)
			__atomic_store_n(&shared->most, now, __ATOMIC_RELAXED);
		uint32_t ask = get(&shared->ask);
		if (ask != shared->answer) {
			for (int d = 0; d < DEVICES; d++)
				EQ(fakegpu_truth(d, NULL, &shared->total[d]), 0);
			for (int d = 0; d < DEVICES; d++)
				EQ(fakegpu_shared(d, &shared->parts[d]), 0);
			set(&shared->answer, ask);
		}
		usleep(100);
	}
	return checks_failed > 0;
}

/* Calls that fail in one process: each once, or a second time. */
static void faults(uint64_t random)
{
	static const char *const calls[] = {
		"cuMemAlloc",
		"cuMemAllocPitch",
		"cuMemAllocManaged",
		"cuMemFree",
		"cuMemAllocAsync",
		"cuMemAllocFromPoolAsync",
		"cuMemFreeAsync",
		"cuMemPoolCreate",
		"cuMemPoolDestroy",
		"cuMemCreate",
		"cuMemRelease",
		"cuMemMap",
		"cuMemUnmap",
		"cuMemAddressReserve",
		"cuMemAddressFree",
		"cuArrayCreate",
		"cuArray3DCreate",
		"cuArrayDestroy",
		"cuMipmappedArrayCreate",
		"cuMipmappedArrayDestroy",
		"cuModuleLoadData",
		"cuModuleUnload",
		"cuLibraryLoadData",
		"cuLibraryGetModule",
		"cuLibraryUnload",
		"cuGraphAddMemAllocNode",
		"cuGraphInstantiateWithFlags",
		"cuGraphLaunch",
		"cuGraphExecDestroy",
		"cuGraphDestroy",
		"cuCtxCreate",
		"cuCtxDestroy",
		"cuMemPrefetchAsync",
		"cuIpcOpenMemHandle",
		"cuIpcCloseMemHandle",
		"cuMemImportFromShareableHandle",
		"cuMemExportToShareableHandle",
		"cuCtxSynchronize",
		"cuStreamSynchronize",
	};
	struct walker w = {.random = random};
	char text[1024] = "";
	for (int i = 0; i < 14; i++)
		snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s:%u:%d", i ? "," : "",
			 calls[below(&w, sizeof calls / sizeof *calls)], 1 + below(&w, 12), UNKNOWN);
	setenv("FAKEGPU_FAIL", text, 1);
}

static pid_t spawn(const char *role, int number, uint64_t seed)
{
	char n[16], s[32];
	snprintf(n, sizeof n, "%d", number);
	snprintf(s, sizeof s, "%llu", (unsigned long long)seed);
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		if (seed)
			faults(mix(seed, 99));
		execl("/proc/self/exe", "random", role, n, s, (char *)NULL);
		_exit(127);
	}
	return pid;
}

/* Starts a process while all others stand still; 0 where there is no room for it. */
static pid_t worker(int i, uint64_t seed)
{
	int status;
	set(&shared->report[i].ready, 0);
	pid_t pid = spawn("work", i, seed);
	while (!get(&shared->report[i].ready)) {
		if (waitpid(pid, &status, WNOHANG) == pid) {
			EQ(status, FULL << 8);
			return 0;
		}
		usleep(200);
	}
	return pid;
}

/* Waits until all that live have got to the round, by a word of their reports; one that ended by itself is
 * wrong. */
static void wait_for_all(pid_t *pids, size_t word, uint32_t round)
{
	for (int i = 0; i < PROCESSES; i++)
		while (pids[i] && get((uint32_t *)((char *)&shared->report[i] + word)) != round) {
			int status;
			if (waitpid(pids[i], &status, WNOHANG) == pids[i]) {
				fprintf(stderr, "process %d ended in round %u with status %x\n", i, round, (unsigned)status);
				CHECK(false);
				pids[i] = 0;
			}
			usleep(500);
		}
}

/* Memory of an IPC handle that its maker has freed is charged to the maker until the process that has it
 * open has taken a reading, and the maker another one after that. So all take one before the comparison, which
 * begins with another. */
static void all_done(pid_t *pids, uint32_t round)
{
	wait_for_all(pids, offsetof(struct report, walked), round);
	set(&shared->still, round);
	wait_for_all(pids, offsetof(struct report, looked), round);
	set(&shared->charged, round);
	wait_for_all(pids, offsetof(struct report, round), round);
}

/* All stand still: the region is what they hold together, and so is the device. Memory of dead
 * processes that descriptors keep is charged to their slots.
 * Returns what the device may have beyond the limit: what was booked without asking. */
static uint64_t compare(const pid_t *pids)
{
	unsigned reaped;
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	set(&shared->ask, shared->ask + 1);
	while (get(&shared->answer) != shared->ask)
		usleep(200);
	for (unsigned d = 0; d < DEVICES; d++) {
		struct region_holding h[64];
		uint64_t truth = 0, away_ = 0, held = 0, lent = 0, kept = 0, unlisted = shared->parts[d].unlisted, more = 0;
		bool exact = true;
		for (int i = 0; i < PROCESSES; i++)
			if (pids[i]) {
				truth += shared->report[i].truth[d];
				away_ += shared->report[i].away[d];
				lent += shared->report[i].lent[d];
				more += unlisted - shared->report[i].lent[d];
				exact &= shared->report[i].exact;
			}
		unsigned n = region_holdings(region_here(), d, h, 64);
		for (unsigned i = 0; i < n; i++)
			*(h[i].lent ? &kept : &held) += h[i].usage.total;
		EQ(shared->total[d], truth + unlisted);
		EQ(unlisted, lent + shared->parts[d].orphaned);
		EQ(region_used(region_here(), d), held + kept);
		CHECK(kept >= shared->parts[d].orphaned);
		CHECK(held >= truth + lent);
		if (exact)
			CHECK(held >= truth + lent + away_ && held <= truth + lent + away_ + more);
	}
	uint64_t booked = 0;
	for (int i = 0; i < PROCESSES; i++)
		booked += pids[i] ? shared->report[i].overhead : 0;
	CHECK(shared->total[0] <= limit_bytes(region_limit(region_here(), 0)) + booked);
	return booked;
}

static void among_others(uint64_t seed)
{
	struct walker w = {.random = mix(seed, 1000)};
	pid_t pids[PROCESSES], watcher;
	int mail[2], status;
	unsigned kills = 0;
	uint64_t booked = 0;
	for (int i = 0; i < PROCESSES; i++) {
		CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, mail) == 0);
		dup2(mail[0], MAIL_FD + 2 * i);
		dup2(mail[1], MAIL_FD + 2 * i + 1);
		close(mail[0]);
		close(mail[1]);
	}
	watcher = spawn("watch", 0, 0);
	for (int i = 0; i < PROCESSES; i++)
		pids[i] = worker(i, mix(seed, (uint64_t)i + 10));
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		bool calm = round % 3 == 2;
		set(&shared->calm, calm);
		set(&shared->round, round);
		for (int i = 0; i < PROCESSES && !calm; i++) {
			if (below(&w, 3) != 0 || !pids[i])
				continue;
			usleep(below(&w, 20000));
			kill(pids[i], SIGKILL);
			CHECK(waitpid(pids[i], &status, 0) == pids[i]);
			pids[i] = 0;
			kills++;
		}
		all_done(pids, round);
		uint64_t now = compare(pids);
		if (calm)
			CHECK(shared->most <= limit_bytes(region_limit(region_here(), 0)) + (now > booked ? now : booked));
		booked = now;
		for (int i = 0; i < PROCESSES; i++)
			if (!pids[i]) {
				EQ(shared->report[i].failed, 0);
				checks_passed += shared->report[i].passed;
				shared->report[i].round = round;
				pids[i] = worker(i, mix(seed, (uint64_t)i + 10 + 100 * round));
			}
	}
	set(&shared->round, ROUNDS + 1);
	all_done(pids, ROUNDS + 1);
	compare(pids);
	set(&shared->leave, 1);
	set(&shared->stop, 1);
	for (int i = 0; i < PROCESSES; i++) {
		if (!pids[i])
			continue;
		EQ(waitpid(pids[i], &status, 0), pids[i]);
		EQ(status, 0);
		EQ(shared->report[i].failed, 0);
		checks_passed += shared->report[i].passed;
	}
	EQ(waitpid(watcher, &status, 0), watcher);
	EQ(status, 0);
	CHECK(kills > 0);
	unsigned reaped;
	struct region_holding h[64];
	for (int i = 0; i < 2 * PROCESSES; i++)
		close(MAIL_FD + i); /* with descriptors that were not received */
	pid_t last = fork();        /* with a file of the driver, so that it can ask about descriptors */
	if (last == 0)
		_exit(cuInit(0) != CUDA_SUCCESS || region_reap(region_here(), &reaped) != REGION_OK);
	EQ(waitpid(last, &status, 0), last);
	EQ(status, 0);
	EQ(region_reap(region_here(), &reaped), REGION_OK);
	EQ(region_holdings(region_here(), 0, h, 64), 0);
	for (unsigned d = 0; d < DEVICES; d++)
		EQ(region_used(region_here(), d), 0);
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
	const char *text = getenv("RATION_TEST_SEED");
	all.trace = getenv("RATION_TEST_TRACE") != NULL;
	if (argc <= 3) {
		int fd = memfd_create("random", 0);
		CHECK(ftruncate(fd, sizeof *shared) == 0 && dup2(fd, SHARED_FD) == SHARED_FD);
	}
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FD, 0);
	if (argc > 3)
		return !strcmp(argv[1], "walk") ? walk(seed) : !strcmp(argv[1], "watch") ? watch() : work(atoi(argv[2]), seed);
	seed = text ? strtoull(text, NULL, 10) : 1;
	printf("random.c: RATION_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (int i = 0; i < ALONE; i++) {
		int status;
		pid_t pid = spawn("walk", 0, mix(seed, (uint64_t)i + 2000));
		CHECK(waitpid(pid, &status, 0) == pid);
		EQ(status, 0);
		checks_passed += shared->report[0].passed;
	}
	memset(shared->report, 0, sizeof shared->report);
	among_others(seed);
	return FINISH();
}
