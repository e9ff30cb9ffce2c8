/* Declares the hooked calls and the driver's real functions behind them, from hooks.def. */
#ifndef RATION_HOOKS_H
#define RATION_HOOKS_H

#include "cuda.h"
#include "lock_order.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define RATION_EXPORT __attribute__((visibility("default")))

/* Declarations of the hooks, so that the compiler checks each definition against hooks.def, and
 * of the entries that are exported under the driver's names: see hooks/entry.c. */
#define HOOK(family, symbol, base, version, per_thread, params, text) \
	int symbol params __asm__("hook_" #symbol);                   \
	RATION_EXPORT int entry_##symbol params __asm__(#symbol);
#define TIMED(kind, family, symbol, base, version, per_thread, params, stream, text) \
	RATION_EXPORT int entry_##symbol params __asm__(#symbol);
#include "hooks.def"

/* An index for each real function, hooked ones first. */
enum ration_call {
#define HOOK(family, symbol, base, version, per_thread, params, text) CALL_##symbol,
#include "hooks.def"
	RATION_HOOKS,
	CALL_before_uses = RATION_HOOKS - 1,
#define USE(symbol, params) CALL_##symbol,
#include "hooks.def"
	RATION_CALLS
};

#define HOOK(family, symbol, base, version, per_thread, params, text) typedef int(*real_##symbol) params;
#define USE(symbol, params) typedef int(*real_##symbol) params;
#include "hooks.def"

/* ration_real returns a real function, or NULL if the driver is not loaded or too old to have
 * it. */
void *ration_real(enum ration_call call);

/* RATION_REAL does the same without a function call in the usual case, for hooks in which each
 * nanosecond matters. */
extern void *interpose_real[RATION_CALLS] __attribute__((visibility("hidden")));
#define RATION_REAL(symbol)                                                                                             \
	({                                                                                                              \
		real_##symbol real_ = (real_##symbol)__atomic_load_n(&interpose_real[CALL_##symbol], __ATOMIC_RELAXED); \
		likely(real_ != NULL) ? real_ : (real_##symbol)ration_real(CALL_##symbol);                              \
	})

/* ration_absent returns the error of a call to a function that the driver does not have. */
int ration_absent(enum ration_call call);

/* REAL calls the driver's function and returns its result. The caller must hold no lock that
 * does not permit driver calls. */
#define REAL(symbol, ...)                                                        \
	({                                                                       \
		real_##symbol real_ = (real_##symbol)ration_real(CALL_##symbol); \
		lock_order_check(LOCK_CALLS_DRIVER);                             \
		real_ ? real_(__VA_ARGS__) : ration_absent(CALL_##symbol);       \
	})

/* REAL_UNLESS returns refused if that is an error. Otherwise it calls the driver's function and
 * returns its result. */
#define REAL_UNLESS(refused, symbol, ...)                                                \
	({                                                                               \
		int refused_ = (refused);                                                \
		likely(refused_ == CUDA_SUCCESS) ? REAL(symbol, __VA_ARGS__) : refused_; \
	})

#endif
