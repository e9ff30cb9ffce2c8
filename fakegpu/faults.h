/* Faults on demand: the k-th call of a name fails, kills its process, or waits.
 *
 *   FAKEGPU_FAIL=cuMemAlloc:3          the third call returns OUT_OF_MEMORY
 *   FAKEGPU_FAIL=cuMemAlloc:3:999      ... or that code
 *   FAKEGPU_DIE=cuMemAlloc:3[:before]  SIGKILL in the third call, before it takes effect
 *   FAKEGPU_DIE=cuMemAlloc:3:after     ... or after
 *
 * Several, separated by commas. A count of 0 means every call (for FAIL). Names
 * are the base names, without _v2 or _ptsz: all variants of a call count together.
 */
#ifndef FAKEGPU_FAULTS_H
#define FAKEGPU_FAULTS_H

#include "atomics.h"
#include "cuda_abi.h"

/* Reads the knobs. Called by cuInit; calls before it are never faulted but for cuInit itself. */
void faults_load(void);

extern bool faults_are_armed;

/* Runs before and after a call while any fault or latency is set. */
CUresult fault_before(const char *name, bool *die_after);
CUresult fault_after(CUresult result, bool die_after);

/* The body of an exported function: evaluates `call` with its faults around it. */
#define ENTRY(name, call)                                    \
    do {                                                     \
        bool die_ = false;                                   \
        CUresult result_;                                    \
        if (__builtin_expect(!load_relaxed(&faults_are_armed), 1)) \
            return (call);                                   \
        result_ = fault_before(#name, &die_);                \
        if (result_ == CUDA_SUCCESS)                         \
            result_ = (call);                                \
        return fault_after(result_, die_);                   \
    } while (0)

#endif
