/* Threads that make things whose size no call tells, all at once, until they are refused:
 *
 *   makers modules|stacks THREADS EACH ROUNDS
 *
 * Each of the THREADS makes up to EACH: modules with a variable of 40 MiB, or a larger stack for
 * a context of its own. After each of the ROUNDS all is undone. The steps (see steps.h):
 *
 *   ready           there is a context, and for stacks one more for each thread
 *   one             one thing was made: tells what it costs
 *   none            it was undone
 *   held made=N most=N refused=N
 *                   the last round; made is how many things there are now, most how many there
 *                   were after any round, and refused how many calls were refused in all
 *   freed           all is undone */
#include "driver.h"

#include <pthread.h>
#include <string.h>

enum { MOST_THREADS = 64, MOST_EACH = 64, LOW = 1024, HIGH = 3072 };

static const char ptx[] = ".version 6.4\n"
			  ".target sm_50\n"
			  ".address_size 64\n"
			  ".visible .global .align 16 .b8 large[41943040];\n";

static struct maker {
	pthread_t thread;
	CUcontext context;
	CUmodule modules[MOST_EACH];
	unsigned made, refused; /* now; ever */
} makers[MOST_THREADS];

static unsigned threads, each;
static pthread_barrier_t together;

/* A kind of thing. Both calls are made in the maker's context. */
struct kind {
	const char *name;
	CUresult (*make)(struct maker *);
	void (*undo)(struct maker *);
};

static CUresult module_make(struct maker *m) { return cuModuleLoadData(&m->modules[m->made], ptx); }
static void module_undo(struct maker *m) { MUST(cuModuleUnload, m->modules[m->made]); }
static CUresult stack_make(struct maker *m)
{
	(void)m;
	return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, HIGH);
}
static void stack_undo(struct maker *m)
{
	(void)m;
	MUST(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, LOW);
}

static const struct kind kinds[] = {{"modules", module_make, module_undo}, {"stacks", stack_make, stack_undo}}, *kind;

static bool make(struct maker *m)
{
	CUresult result = kind->make(m);
	if (result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND)
		skip("cuModuleLoadData: the driver's compiler is not installed (%d)", result);
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		m->refused++;
		return false;
	}
	driver_must(result, kind->name);
	m->made++;
	return true;
}

static void undo(struct maker *m)
{
	MUST(cuCtxSetCurrent, m->context);
	for (; m->made > 0; kind->undo(m))
		m->made--;
}

static void *run(void *arg)
{
	struct maker *m = arg;
	MUST(cuCtxSetCurrent, m->context);
	pthread_barrier_wait(&together);
	while (m->made < each && make(m))
		continue;
	return NULL;
}

static unsigned run_all(void)
{
	unsigned made = 0;
	for (unsigned i = 0; i < threads; i++)
		if (pthread_create(&makers[i].thread, NULL, run, &makers[i]))
			fail("pthread_create: no thread");
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(makers[i].thread, NULL);
		made += makers[i].made;
	}
	MUST(cuCtxSynchronize, );
	return made;
}

static void undo_all(void)
{
	for (unsigned i = 0; i < threads; i++)
		undo(&makers[i]);
	MUST(cuCtxSetCurrent, makers[0].context);
	MUST(cuCtxSynchronize, );
}

static void open_contexts(CUdevice device)
{
	CUcontext primary;
	MUST(cuDevicePrimaryCtxRetain, &primary, device);
	for (unsigned i = 0; i < threads; i++) {
		makers[i].context = primary;
		if (kind->make == stack_make) {
			MUST(cuCtxCreate_v2, &makers[i].context, 0, device);
			MUST(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, LOW);
		}
	}
	MUST(cuCtxSetCurrent, makers[0].context);
	MUST(cuCtxSynchronize, );
}

int main(int count, char **arguments)
{
	unsigned rounds = count == 5 ? (unsigned)steps_size(arguments[4]) : 0, made = 0, most = 0, refused = 0;
	threads = count == 5 ? (unsigned)steps_size(arguments[2]) : 0;
	each = count == 5 ? (unsigned)steps_size(arguments[3]) : 0;
	for (size_t i = 0; count == 5 && i < sizeof kinds / sizeof *kinds; i++)
		if (!strcmp(kinds[i].name, arguments[1]))
			kind = &kinds[i];
	if (!kind || !rounds || !threads || threads > MOST_THREADS || !each || each > MOST_EACH) {
		fprintf(stderr, "usage: makers modules|stacks THREADS EACH ROUNDS (at most %d threads, %d each)\n", MOST_THREADS,
			MOST_EACH);
		return STEPS_USAGE;
	}
	pthread_barrier_init(&together, NULL, threads);
	open_contexts(driver_start());
	step("ready");
	if (!make(&makers[0]))
		fail("%s: the first was refused", kind->name);
	MUST(cuCtxSynchronize, );
	step("one");
	undo_all();
	step("none");
	for (unsigned i = 0; i < rounds; i++) {
		undo_all();
		made = run_all();
		most = made > most ? made : most;
	}
	for (unsigned i = 0; i < threads; i++)
		refused += makers[i].refused;
	step("held made=%u most=%u refused=%u", made, most, refused);
	undo_all();
	step("freed");
	return 0;
}
