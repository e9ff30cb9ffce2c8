/* Takes device memory along one allocation path, step by step:
 *
 *   allocpaths PATH PIECE MOST
 *
 * PATH is linear, odd, pitch, managed, pool, vmm, array, graph, contexts or module. PIECE
 * is a multiple of 2 MiB, and MOST the most bytes that the program may hold. MOST must be
 * less than what is free: a full device does not refuse managed memory, and becomes
 * extremely slow.
 *
 * The steps (see steps.h). Each has data, and all memory that is allocated is written:
 *
 *   empty  there is a context, and nothing else
 *   held   4 pieces
 *   full   as many pieces as were granted; refused is the driver's code for out of memory
 *          (2), or 0 if MOST was reached before
 *   freed  all pieces are freed, and pools trimmed
 *   again  one piece: the refusal has done no harm
 *
 * Some paths have other steps in between, in this order:
 *
 *   pool      after held: freed, without synchronisation; trimmed
 *   vmm       before held: created, mapped; after it: released, with the mappings still
 *             there; unmapped
 *   graph     before held: launched, a graph that frees what it allocates; trimmed
 *   contexts  after held, with a piece in the primary context and in each of three
 *             others: one, two and three of these destroyed; no full
 *   module    no full; module is at least the size of its variable, data is 0
 *
 * The data of a pool, and of a graph, is what the driver has reserved for it. */
#include "allocpaths.h"

#include <string.h>

CUdevice device;
uint64_t piece;

static const struct allocpath *const allocpaths[] = {&linear, &odd, &pitch, &managed, &pool, &vmm, &array, &graph, &contexts, &module};

static const char *refused_call; /* the latest */

bool allocpath_had(CUresult result, const char *call)
{
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		refused_call = call;
		return false;
	}
	driver_can(result, call);
	return true;
}

void allocpath_refused(const char *what) { fail("%s: %d, of %s", refused_call, CUDA_ERROR_OUT_OF_MEMORY, what); }

void allocpath_hold(bool (*take)(void))
{
	for (int i = 0; i < FIRST; i++)
		if (!take())
			allocpath_refused("the first pieces");
}

static void print_step(const struct allocpath *w, const char *name) { step("%s data=%llu", name, (unsigned long long)w->data()); }

static void run_steps(const struct allocpath *w, uint64_t most)
{
	CUresult refused = CUDA_SUCCESS;
	if (w->begin)
		w->begin();
	print_step(w, "empty");
	if (w->before)
		w->before();
	if (w->hold)
		w->hold();
	else
		allocpath_hold(w->take);
	print_step(w, "held");
	if (w->after)
		w->after();
	while (!refused && w->data() + piece <= most)
		refused = w->take() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	step("full data=%llu refused=%d", (unsigned long long)w->data(), refused);
	w->give_back();
	print_step(w, "freed");
	if (!w->take())
		allocpath_refused("a piece after all was freed");
	print_step(w, "again");
	w->give_back();
	if (w->end)
		w->end();
}

int main(int count, char **arguments)
{
	const struct allocpath *path = NULL;
	uint64_t most = count == 4 ? steps_size(arguments[3]) : 0;
	piece = count == 4 ? steps_size(arguments[2]) : 0;
	for (size_t i = 0; count == 4 && i < sizeof allocpaths / sizeof *allocpaths; i++)
		if (!strcmp(allocpaths[i]->name, arguments[1]))
			path = allocpaths[i];
	if (!path || !piece || piece % GRAIN || most / FIRST < piece || most / piece > PIECES) {
		fprintf(stderr, "usage: allocpaths PATH PIECE MOST (pieces of whole 2 MiB, at least %d and at most %d of them)\n", FIRST,
			PIECES);
		return STEPS_USAGE;
	}
	device = driver_start();
	if (path->play)
		path->play();
	else
		run_steps(path, most);
	MUST(cuDevicePrimaryCtxRelease_v2, device);
	return 0;
}
