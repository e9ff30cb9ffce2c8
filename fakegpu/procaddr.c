/* cuGetProcAddress: the right variant of a name for a version and a kind of stream. */
#include <string.h>

#include "driver.h"
#include "fakegpu.h"

struct symbol {
	const char *base, *exported;
	int version;
	bool per_thread;
	const void *address;
};

/* Only addresses are wanted here, so each exported function is declared as a byte
 * under a private name; the linker binds it to the function itself (-Bsymbolic),
 * never to one that was preloaded over it. */
#define SYMBOL(base, version, exported) extern EXPORT const char at_##exported[] __asm__(#exported);
#define THREAD(base, version, exported) SYMBOL(base, version, exported)
#include "symbols.h"
#undef SYMBOL
#undef THREAD

#define SYMBOL(base, version, exported) {#base, #exported, version, false, at_##exported},
#define THREAD(base, version, exported) {#base, #exported, version, true, at_##exported},
static const struct symbol procaddr_symbols[] = {
#include "symbols.h"
};

enum { COUNT = sizeof procaddr_symbols / sizeof *procaddr_symbols };

/* A name that has per-thread variants is answered with one of those alone where
 * they are asked for; other names have but one variant. */
static const struct symbol *procaddr_find(const char *base, int version, bool per_thread, int *status)
{
	const struct symbol *best = NULL;
	bool known = false, has_thread = false;

	for (size_t i = 0; i < COUNT; i++)
		if (strcmp(procaddr_symbols[i].base, base) == 0) {
			known = true;
			has_thread |= procaddr_symbols[i].per_thread;
		}
	for (size_t i = 0; i < COUNT; i++) {
		const struct symbol *s = &procaddr_symbols[i];
		if (strcmp(s->base, base) == 0 && s->version <= version && s->per_thread == (per_thread && has_thread) &&
		    (best == NULL || s->version > best->version))
			best = s;
	}
	*status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
		  : known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
			       : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return best;
}

static CUresult procaddr_resolve(const char *base, void **out, int version, uint64_t flags, int *status)
{
	const struct symbol *s;

	if (base == NULL || out == NULL || version > CUDA_DRIVER_VERSION ||
	    flags > (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
		return CUDA_ERROR_INVALID_VALUE;
	s = procaddr_find(base, version, (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0, status);
	*out = s == NULL ? NULL : (void *)(uintptr_t)s->address;
	return CUDA_SUCCESS;
}

/* The newer call says what is wrong in *status and returns success all the same. */
API cuGetProcAddress_v2(const char *base, void **out, int version, uint64_t flags, int *status)
{
	int s;
	TRY(procaddr_resolve(base, out, version, flags, &s));
	if (status != NULL)
		*status = s;
	return CUDA_SUCCESS;
}

API cuGetProcAddress(const char *base, void **out, int version, uint64_t flags)
{
	int s;
	TRY(procaddr_resolve(base, out, version, flags, &s));
	return s == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT int fakegpu_symbol(size_t i, const char **base, const char **exported, int *version, int *per_thread)
{
	if (i >= COUNT)
		return -1;
	*base = procaddr_symbols[i].base;
	*exported = procaddr_symbols[i].exported;
	*version = procaddr_symbols[i].version;
	*per_thread = procaddr_symbols[i].per_thread;
	return 0;
}
