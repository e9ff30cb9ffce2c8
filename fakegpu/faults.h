/* Faults on demand: the k-th call of a name fails or kills its process; every call
 * of a name is slow, or waits at a gate (gate.h).
 *
 *   FAKEGPU_FAIL=cuMemAlloc:3          the third call returns OUT_OF_MEMORY
 *   FAKEGPU_FAIL=cuMemAlloc:3:999      ... or that code
 *   FAKEGPU_DIE=cuMemAlloc:3[:before]  SIGKILL in the third call, before it takes effect
 *   FAKEGPU_DIE=cuMemAlloc:3:after     ... or after
 *   FAKEGPU_SLOW=cuMemAlloc:200        each call waits 200 us once it has taken effect
 *   FAKEGPU_SLOW=cuMemAlloc:200:before ... or before
 *
 * Several, separated by commas. A count of 0 means every call (for FAIL). Names
 * are the base names, without _v2 or _ptsz: all variants of a call count together.
 * SLOW and gates also know the points inside a pool that README.md lists.
 */
#ifndef FAKEGPU_FAULTS_H
#define FAKEGPU_FAULTS_H

#include "atomics.h"
#include "calls.h"
#include "cuda_abi.h"
#include "gate.h"

/* Reads the settings. Called by cuInit; no fault is made in a call before it, except in cuInit
 * itself. */
void faults_load(void);

/* Run before and after a call while any fault, latency or gate is set. */
CUresult fault_before(const char *name, bool *die_after);
CUresult fault_after(const char *name, CUresult result, bool die_after);

/* A named point inside a call, possibly under a lock of the driver: it waits if FAKEGPU_SLOW or a
 * gate names it. No thread is cancelled there. */
void fault_inside(const char *point);

/* The body of an exported function: evaluates `call` with its faults around it. */
#define ENTRY(name, call)                                             \
	do {                                                          \
		bool die_ = false;                                    \
		CUresult result_;                                     \
		if (__builtin_expect(!load_relaxed(&gates_armed), 1)) \
			return (call);                                \
		calls_enter();                                        \
		result_ = fault_before(#name, &die_);                 \
		if (result_ == CUDA_SUCCESS)                          \
			result_ = (call);                             \
		result_ = fault_after(#name, result_, die_);          \
		calls_leave();                                        \
		return result_;                                       \
	} while (0)

#endif
