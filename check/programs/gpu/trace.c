/* Traces which driver calls a program looks up, and which it makes. Preloaded into the
 * program, this library records every name that is looked up by dlsym or by
 * cuGetProcAddress, and counts the calls. It changes nothing else. When the program ends,
 * TRACE_FILE.PID has a line for each name:
 *
 *   LOOKUP NAME VERSION FLAGS CALLS
 *
 * LOOKUP is dlsym, proc (cuGetProcAddress) or proc2 (its second version). Calls of programs
 * that are linked with the driver are not traced: `nm -D` lists them.
 *
 * The tester uses it to find calls that docs/coverage.md does not mention. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"

enum { MOST = 8192, NAME = 72 };

/* A name that was looked up. The code counts and jumps to the target, so that arguments and
 * return address are those of the caller. */
struct entry {
	uint8_t code[32];
	uint64_t calls;
	void *target;
	char name[NAME];
	const char *lookup;
	int version;
	uint64_t flags;
};

typedef void *(*dlsym_call)(void *, const char *);
typedef CUresult (*proc_call)(const char *, void **, int, uint64_t);
typedef CUresult (*proc2_call)(const char *, void **, int, uint64_t, int *);

static struct entry *entries;
static unsigned count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dlsym_call real_dlsym;
static proc_call real_proc;
static proc2_call real_proc2;

/* The code finds the counter and the target by their distance from itself. */
_Static_assert(offsetof(struct entry, calls) == 32 && offsetof(struct entry, target) == 40, "as the code has it");
#if defined __x86_64__
#define BASE_VERSION "GLIBC_2.2.5"
static const uint8_t code[] = {
	0xf3, 0x0f, 0x1e, 0xfa,              /* endbr64 */
	0xf0, 0x48, 0xff, 0x05, 20, 0, 0, 0, /* lock incq calls(%rip) */
	0xff, 0x25, 22,   0,    0,  0,       /* jmp *target(%rip) */
};
#elif defined __aarch64__
#define BASE_VERSION "GLIBC_2.17"
static const uint32_t code[] = {
	0xd503245f, /* bti c */
	0x100000f0, /* adr x16, calls */
	0xc85f7e11, /* 1: ldxr x17, [x16] */
	0x91000631, /* add x17, x17, #1 */
	0xc80f7e11, /* stxr w15, x17, [x16] */
	0x35ffffaf, /* cbnz w15, 1b */
	0x58000090, /* ldr x16, target */
	0xd61f0200, /* br x16 */
};
#else
#error "the counters are machine code, and none is known for this processor"
#endif

/* counted returns the address that the program gets for a name: that of the counting code,
 * or the target if there is no room for it. */
static void *counted(const char *lookup, const char *name, int version, uint64_t flags, void *target)
{
	struct entry *e = NULL;
	pthread_mutex_lock(&lock);
	if (!entries) {
		void *at = mmap(NULL, MOST * sizeof *entries, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		entries = at == MAP_FAILED ? NULL : at;
	}
	for (unsigned i = 0; entries && i < count && !e; i++)
		if (entries[i].target == target && entries[i].lookup == lookup && entries[i].version == version &&
		    entries[i].flags == flags && !strcmp(entries[i].name, name))
			e = &entries[i];
	if (entries && !e && count < MOST && strlen(name) < NAME) {
		e = &entries[count++];
		*e = (struct entry){.target = target, .lookup = lookup, .version = version, .flags = flags};
		strcpy(e->name, name);
		memcpy(e->code, code, sizeof code);
		__builtin___clear_cache((char *)e->code, (char *)e->code + sizeof code);
	}
	pthread_mutex_unlock(&lock);
	return e ? (void *)e->code : target;
}

static CUresult traced_proc(const char *name, void **out, int version, uint64_t flags)
{
	CUresult result = real_proc(name, out, version, flags);
	if (!result && out && *out)
		*out = counted("proc", name, version, flags, *out);
	return result;
}

static CUresult traced_proc2(const char *name, void **out, int version, uint64_t flags, int *status)
{
	CUresult result = real_proc2(name, out, version, flags, status);
	if (result || !out || !*out)
		return result;
	if (!strcmp(name, "cuGetProcAddress")) { /* a lookup of the lookup itself */
		counted("proc2", name, version, flags, *out);
		*out = version < 12000 ? (void *)traced_proc : (void *)traced_proc2;
		return result;
	}
	*out = counted("proc2", name, version, flags, *out);
	return result;
}

static int of_driver(const void *at)
{
	Dl_info info;
	return dladdr(at, &info) && info.dli_fname && strstr(info.dli_fname, "libcuda.so");
}

static __attribute__((noinline)) void *found(const char *name, void *at)
{
	if (!of_driver(at))
		return at;
	void *out = counted("dlsym", name, 0, 0, at);
	if (!strcmp(name, "cuGetProcAddress")) {
		real_proc = (proc_call)at;
		return (void *)traced_proc;
	}
	if (!strcmp(name, "cuGetProcAddress_v2")) {
		real_proc2 = (proc2_call)at;
		if (!real_proc)
			real_proc = (proc_call)real_dlsym(RTLD_DEFAULT, "cuGetProcAddress");
		return (void *)traced_proc2;
	}
	return out;
}

static __attribute__((constructor)) void begin(void)
{
	if (!real_dlsym)
		real_dlsym = (dlsym_call)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	if (!real_dlsym)
		real_dlsym = (dlsym_call)dlvsym(RTLD_NEXT, "dlsym", BASE_VERSION);
}

__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name)
{
	if (!real_dlsym)
		begin();
	if (handle == RTLD_NEXT || name[0] != 'c' || name[1] != 'u')
		return real_dlsym(handle, name); /* a jump, so that it sees the caller */
	void *at = real_dlsym(handle, name);
	return at ? found(name, at) : NULL;
}

static __attribute__((destructor)) void end(void)
{
	const char *prefix = getenv("TRACE_FILE");
	char path[4096];
	if (!prefix || !count || (size_t)snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid()) >= sizeof path)
		return;
	FILE *f = fopen(path, "we");
	if (!f)
		return;
	for (unsigned i = 0; i < count; i++)
		fprintf(f, "%s %s %d %" PRIu64 " %" PRIu64 "\n", entries[i].lookup, entries[i].name, entries[i].version, entries[i].flags,
			__atomic_load_n(&entries[i].calls, __ATOMIC_RELAXED));
	fclose(f);
}
