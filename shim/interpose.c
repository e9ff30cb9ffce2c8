/* How programs reach the driver, and how the hooks come in between.
 *
 * A program that is linked with libcuda binds to our exports, as this library comes first. A
 * program that calls dlsym or cuGetProcAddress gets the result of the real resolver, unless
 * that result is a driver function for which there is a hook: then it gets the hook. Other
 * names, and wrappers around the driver in other libraries, are left alone.
 *
 * The driver's own functions are found in its symbol table, never by a lookup that another
 * library, or this one, may have interposed. */
#include "attach.h"
#include "interpose.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "elf.h"
#include "environment.h"
#include "hooks.h"
#include "log.h"

/* The newest CUDA version whose calls are in hooks.def. In a newer version a name may mean a
 * call with other parameters. */
#define INTERPOSE_KNOWN_CUDA 13999

static const char *const interpose_names[RATION_CALLS] = {
#define HOOK(family, symbol, base, version, per_thread, params, text) [CALL_##symbol] = #symbol,
#define USE(symbol, params) [CALL_##symbol] = #symbol,
#include "hooks.def"
};

static void *const interpose_hooks[RATION_HOOKS] = {
#define HOOK(family, symbol, base, version, per_thread, params, text) [CALL_##symbol] = (void *)entry_##symbol,
#include "hooks.def"
};

/* Calls whose hooks are given out only in jobs. */
static const bool interpose_timed[RATION_HOOKS] = {
#define TIMED(kind, family, symbol, base, version, per_thread, params, stream, text) [CALL_##symbol] = true,
#include "hooks.def"
};

/* The names by which cuGetProcAddress knows the hooks. */
static const struct interpose_variant {
	const char *base;
	int version;
	bool per_thread;
	enum ration_call call;
} interpose_variants[] = {
#define HOOK(family, symbol, base, version, per_thread, params, text) {#base, version, per_thread, CALL_##symbol},
#define ALIAS(base, version, symbol) {#base, version, 0, CALL_##symbol},
#include "hooks.def"
};

enum interpose_library { CUDA, NVML, LIBRARIES };
static const char *const interpose_sonames[LIBRARIES] = {"libcuda.so.1", "libnvidia-ml.so.1"};

static enum interpose_library interpose_library_of(enum ration_call call) { return interpose_names[call][0] == 'n' ? NVML : CUDA; }

/* The driver's functions, and whether those of a library have been filled in. Any thread may
 * write them, and all write the same values; atomic. */
void *interpose_real[RATION_CALLS];
static void *interpose_ioctl_found;
static int interpose_resolved[LIBRARIES];

/* The real resolvers, to which the stubs in stubs.c jump. */
__attribute__((visibility("hidden"))) void *ration_real_dlsym, *ration_real_dlvsym;

typedef void *(*dlopen_function)(const char *, int);
typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlvsym_function)(void *, const char *, const char *);

/* interpose_dl_function returns one of the C library's dl functions, or NULL. They are in libdl
 * in an old C library, and in libc in a new one. */
static void *interpose_dl_function(const char *name)
{
	struct elf_object o;
	void *found = elf_first("libc.so.6", &o) ? elf_symbol(&o, name) : NULL;
	return found || !elf_first("libdl.so.2", &o) ? found : elf_symbol(&o, name);
}

/* interpose_find_resolvers finds the real dlsym and dlvsym, and returns whether it found both.
 * It may be the first function that runs in a process: other preloaded libraries look up the
 * functions that they wrap in their constructors. */
static bool interpose_find_resolvers(void)
{
	if (likely(__atomic_load_n(&ration_real_dlvsym, __ATOMIC_ACQUIRE)))
		return true;
	void *dlsym_found = interpose_dl_function("dlsym"), *dlvsym_found = interpose_dl_function("dlvsym");
	if (!dlsym_found || !dlvsym_found)
		return false;
	__atomic_store_n(&ration_real_dlsym, dlsym_found, __ATOMIC_RELAXED);
	__atomic_store_n(&ration_real_dlvsym, dlvsym_found, __ATOMIC_RELEASE);
	return true;
}

void *interpose_find(const char *name)
{
	return interpose_find_resolvers() ? ((dlsym_function)ration_real_dlsym)(RTLD_DEFAULT, name) : NULL;
}

/* interpose_resolve fills in the real functions of a library, if it is loaded, and keeps it
 * loaded, so that the addresses stay valid. It returns whether they are filled in. Safe to call
 * twice. */
static bool interpose_resolve(enum interpose_library l)
{
	struct elf_object o;
	if (likely(__atomic_load_n(&interpose_resolved[l], __ATOMIC_ACQUIRE)))
		return true;
	if (!elf_named(interpose_sonames[l], &o))
		return false;
	dlopen_function open = (dlopen_function)interpose_dl_function("dlopen");
	if (open)
		open(interpose_sonames[l], RTLD_LAZY | RTLD_NOLOAD);
	for (enum ration_call c = 0; c < RATION_CALLS; c++)
		if (interpose_library_of(c) == l)
			__atomic_store_n(&interpose_real[c], elf_symbol(&o, interpose_names[c]), __ATOMIC_RELAXED);
	void *own_ioctl = l == CUDA ? elf_symbol(&o, "ioctl") : NULL;
	if (own_ioctl)
		__atomic_store_n(&interpose_ioctl_found, own_ioctl, __ATOMIC_RELAXED);
	/* Release: a thread that reads 1 here also sees the addresses. */
	__atomic_store_n(&interpose_resolved[l], 1, __ATOMIC_RELEASE);
	return true;
}

static int interpose_hook_named(const char *name);

/* The C library's functions in whose place this library has its own. The addresses are written by
 * the constructor alone. */
static struct interpose_wrapped {
	const char *name;
	void *real, *own;
} interpose_wrapped[] = {{.name = "dlsym"}, {.name = "dlvsym"}, {.name = "ioctl"}};

#define INTERPOSE_WRAPPED (sizeof interpose_wrapped / sizeof *interpose_wrapped)

/* interpose_bound_to_libc returns our function for a reference that is bound to the C library's,
 * and otherwise the address to which it is bound. */
static void *interpose_bound_to_libc(const char *name, void *bound)
{
	for (size_t i = 0; i < INTERPOSE_WRAPPED; i++) {
		struct interpose_wrapped *w = &interpose_wrapped[i];
		if (w->real && bound == w->real && elf_same(name, w->name))
			return w->own;
	}
	return bound;
}

/* interpose_precede_libc handles a part of the C library that comes before this library in LD_PRELOAD,
 * so that programs bind to its dlsym, and get the driver's functions. */
static void interpose_precede_libc(const char *soname)
{
	struct elf_object own, libc;
	if (!elf_before(soname) || !elf_own(&own) || !elf_first(soname, &libc) || !interpose_find_resolvers())
		return;
	elf_trust_libc(); /* before its table leads to us */
	for (size_t i = 0; i < INTERPOSE_WRAPPED; i++) {
		struct interpose_wrapped *w = &interpose_wrapped[i];
		w->real = elf_symbol(&libc, w->name);
		w->own = elf_symbol(&own, w->name);
		elf_redirect(&libc, w->name, w->own);
	}
	elf_rebind(false, interpose_bound_to_libc);
}

/* interpose_bound_to_driver returns the hook for a reference that is bound to the driver's
 * function, and otherwise the address to which it is bound. */
static void *interpose_bound_to_driver(const char *name, void *bound)
{
	int call = interpose_hook_named(name);
	return call >= 0 && bound == interpose_real[call] ? interpose_hooks[call] : bound;
}

/* interpose_come_first handles a library that comes before ours in LD_PRELOAD, the driver's or the C
 * library, so that programs bind to its functions and not to ours. It changes that library's symbol
 * table, so that later lookups find ours, and redirects references that are already bound. */
__attribute__((constructor)) static void interpose_come_first(void)
{
	interpose_precede_libc("libc.so.6");
	interpose_precede_libc("libdl.so.2");
	for (enum interpose_library l = 0; l < LIBRARIES; l++) {
		struct elf_object o;
		if (!elf_before(interpose_sonames[l]))
			continue;
		elf_trust_libc();
		if (!elf_first(interpose_sonames[l], &o) || !interpose_resolve(l))
			continue;
		for (int c = 0; c < RATION_HOOKS; c++)
			if (interpose_library_of((enum ration_call)c) == l)
				elf_redirect(&o, interpose_names[c], interpose_hooks[c]);
		elf_rebind(false, interpose_bound_to_driver);
	}
}

/* The address sanitizer's runtime aborts a program in which another library comes before it. It
 * calls this function for its default options, and finds ours, as this library comes first. We
 * define none of the functions that it wraps, so the order does no harm. A program's own
 * function of this name overrides ours, and ASAN_OPTIONS overrides both. */
RATION_EXPORT const char *__asan_default_options(void) { return "verify_asan_link_order=0"; }

/* interpose_raw_ioctl is used if no library after this one defines ioctl. */
static int interpose_raw_ioctl(int fd, unsigned long request, void *arg) { return (int)syscall(SYS_ioctl, fd, request, arg); }

void *ration_real(enum ration_call call)
{
	void *found = __atomic_load_n(&interpose_real[call], __ATOMIC_RELAXED);
	if (likely(found != NULL))
		return found;
	return interpose_resolve(interpose_library_of(call)) ? __atomic_load_n(&interpose_real[call], __ATOMIC_RELAXED) : NULL;
}

int ration_absent(enum ration_call call)
{
	enum interpose_library l = interpose_library_of(call);
	bool loaded = __atomic_load_n(&interpose_resolved[l], __ATOMIC_ACQUIRE);
	if (l == NVML)
		return loaded ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_LIBRARY_NOT_FOUND;
	return loaded ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_NO_DEVICE;
}

void *interpose_ioctl(void)
{
	void *found = __atomic_load_n(&interpose_ioctl_found, __ATOMIC_RELAXED), *none = NULL;
	if (likely(found != NULL))
		return found;
	/* This may run before any constructor, so elf_next must call no other library. */
	found = elf_next("ioctl");
	if (!found)
		return (void *)interpose_raw_ioctl;
	return __atomic_compare_exchange_n(&interpose_ioctl_found, &none, found, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ? found : none;
}

bool interpose_load_nvml(void)
{
	if (interpose_resolve(NVML))
		return true;
	lock_order_check(LOCK_CALLS_LINKER);
	dlopen_function open = (dlopen_function)interpose_dl_function("dlopen");
	return open && open(interpose_sonames[NVML], RTLD_LAZY) && interpose_resolve(NVML);
}

/* The C library's functions that the driver gets from this library instead. */
static struct interpose_substitute {
	const char *name;
	void *to;  /* atomic; NULL: the driver keeps the C library's */
	int found; /* the driver refers to it; atomic */
} interpose_substitutes[] = {{.name = "getenv"}, {.name = "mmap"}, {.name = "mmap64"}};

static struct interpose_substitute *interpose_substitute_of(const char *name)
{
	for (size_t i = 0; i < sizeof interpose_substitutes / sizeof *interpose_substitutes; i++)
		if (!strcmp(interpose_substitutes[i].name, name))
			return &interpose_substitutes[i];
	return NULL;
}

static void *interpose_choose_substitute(const char *name, void *bound)
{
	struct interpose_substitute *s = interpose_substitute_of(name);
	void *to = s ? __atomic_load_n(&s->to, __ATOMIC_RELAXED) : NULL;
	if (!to)
		return bound;
	__atomic_store_n(&s->found, 1, __ATOMIC_RELAXED);
	return to;
}

bool interpose_in_driver(const char *name, void *to)
{
	struct elf_object o;
	struct interpose_substitute *s = interpose_substitute_of(name);
	if (!s || !interpose_resolve(CUDA) || !elf_named(interpose_sonames[CUDA], &o))
		return false;
	__atomic_store_n(&s->to, to, __ATOMIC_RELAXED);
	elf_rebind_in(&o, interpose_choose_substitute);
	return __atomic_load_n(&s->found, __ATOMIC_RELAXED);
}

static int interpose_hook_named(const char *name)
{
	if (!((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v')))
		return -1;
	for (int c = 0; c < RATION_HOOKS; c++)
		if (!strcmp(interpose_names[c], name))
			return c;
	return -1;
}

/* interpose_hands_out reports whether a program that looks up a call gets our hook. */
static bool interpose_hands_out(int call) { return !interpose_timed[call] || attach_has_job(); }

/* interpose_answer returns the function that such a program gets: the hook, or the driver's
 * function if there is one and hooks are not given out. */
static void *interpose_answer(int call)
{
	void *real = interpose_hands_out(call) ? NULL : ration_real((enum ration_call)call);
	return real ? real : interpose_hooks[call];
}

struct interpose_next {
	const char *name;
	bool past;
	void *found;
};

static bool interpose_is_next(const struct elf_object *o, bool holds, void *arg)
{
	struct interpose_next *n = arg;
	if (!n->past) {
		n->past = holds;
		return false;
	}
	n->found = elf_symbol(o, n->name);
	return n->found != NULL;
}

/* interpose_next_after returns the address that dlsym(RTLD_NEXT) would find for a caller, or
 * NULL. The real dlsym would take this library for the caller. */
static void *interpose_next_after(const void *caller, const char *name)
{
	struct interpose_next n = {.name = name};
	return elf_find(interpose_is_next, caller, &n) ? n.found : NULL;
}

/* interpose_trace logs for ration doctor which of the driver's names a program looks up. This
 * happens before cuInit, and so before the settings are read: RATION_LOG=debug turns it on. */
static void interpose_trace(const char *name, int version, bool counted)
{
	enum { UNKNOWN, QUIET, TRACING };
	static int state;
	int now = __atomic_load_n(&state, __ATOMIC_RELAXED);
	if (now == QUIET || (strncmp(name, "cu", 2) && strncmp(name, "nvml", 4)))
		return;
	if (now == UNKNOWN) {
		now = log_level_of(environment_get("RATION_LOG")) == LOG_DEBUG ? TRACING : QUIET;
		if (now == TRACING)
			log_setup();
		__atomic_store_n(&state, now, __ATOMIC_RELAXED);
	}
	if (now == TRACING)
		log_debug("resolves %s (%d): %s", name, version, counted ? "counted" : "passed on");
}

/* interpose_look_up returns what the real resolver finds for a caller. */
static void *interpose_look_up(void *handle, const char *name, const char *version, const void *caller)
{
	if (handle == RTLD_NEXT)
		return interpose_next_after(caller, name);
	return version ? ((dlvsym_function)ration_real_dlvsym)(handle, name, version) : ((dlsym_function)ration_real_dlsym)(handle, name);
}

/* interpose_pick_resolver decides a lookup of dlsym or dlvsym itself, as ration_pick does: a program
 * that looks for the C library's gets ours, with which it finds the hooks. */
static bool interpose_pick_resolver(void *handle, const char *name, const char *version, const void *caller, void **result)
{
	struct elf_object own;
	if (!elf_same(name, "dlsym") && !elf_same(name, "dlvsym"))
		return false;
	void *found = interpose_look_up(handle, name, version, caller);
	if (!found || (found != ration_real_dlsym && found != ration_real_dlvsym) || !elf_own(&own))
		return false;
	*result = elf_symbol(&own, name);
	return true;
}

/* ration_pick decides a lookup for the stubs. It returns true with the address in *result, or
 * false if the stub must jump to the real resolver. */
__attribute__((visibility("hidden"))) bool ration_pick(void *handle, const char *name, const char *version, const void *caller,
						       void **result)
{
	*result = NULL;
	if (!interpose_find_resolvers())
		return true;
	int call = name ? interpose_hook_named(name) : -1;
	if (name)
		interpose_trace(name, 0, call >= 0 && interpose_hands_out(call));
	if (call < 0)
		return name && interpose_pick_resolver(handle, name, version, caller, result);
	void *found = interpose_look_up(handle, name, version, caller);
	enum interpose_library l = interpose_library_of((enum ration_call)call);
	if (found && found == interpose_hooks[call] && !interpose_resolve(l))
		/* The lookup found only our export, and the driver is not loaded: without this
		 * library the program would find nothing. The real dlsym fails here, and sets
		 * the message for dlerror. */
		found = ((dlsym_function)ration_real_dlsym)(handle,
							    l == CUDA ? "libcuda.so.1 is not loaded" : "libnvidia-ml.so.1 is not loaded");
	else if (found && (found == ration_real(call) || found == interpose_hooks[call]))
		found = interpose_answer(call);
	else if (handle == RTLD_NEXT)
		return false;
	*result = found;
	return true;
}

/* interpose_variant_of returns our hook for the function that cuGetProcAddress found, or that
 * function itself if there is no hook for it. */
static void *interpose_variant_of(void *found, const char *name, int version, uint64_t flags)
{
	enum { PER_THREAD = 2 };
	const struct interpose_variant *best = NULL;
	bool threaded = false;
	for (int c = 0; c < RATION_HOOKS; c++)
		if (found == __atomic_load_n(&interpose_real[c], __ATOMIC_RELAXED))
			return interpose_hands_out(c) ? interpose_hooks[c] : found;
	/* The driver may return other entry points here than it exports: look for the hook by
	 * name. */
	if (version > INTERPOSE_KNOWN_CUDA)
		return found;
	for (size_t i = 0; i < sizeof interpose_variants / sizeof *interpose_variants; i++)
		if (!strcmp(interpose_variants[i].base, name))
			threaded |= interpose_variants[i].per_thread;
	for (size_t i = 0; i < sizeof interpose_variants / sizeof *interpose_variants; i++) {
		const struct interpose_variant *v = &interpose_variants[i];
		if (v->version <= version && v->per_thread == (threaded && (flags & PER_THREAD)) && (!best || v->version > best->version) &&
		    !strcmp(v->base, name))
			best = v;
	}
	return best && ration_real(best->call) && interpose_hands_out((int)best->call) ? interpose_hooks[best->call] : found;
}

static void *interpose_proc_address(void *found, const char *name, int version, uint64_t flags)
{
	void *mine = interpose_variant_of(found, name, version, flags);
	interpose_trace(name, version, mine != found);
	return mine;
}

int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
	int result = REAL(cuGetProcAddress, name, out, version, flags);
	if (result == CUDA_SUCCESS && name && out && *out)
		*out = interpose_proc_address(*out, name, version, flags);
	return result;
}

int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
	int result = REAL(cuGetProcAddress_v2, name, out, version, flags, status);
	if (result == CUDA_SUCCESS && name && out && *out)
		*out = interpose_proc_address(*out, name, version, flags);
	return result;
}
