/* What tests may ask the stand-in driver, beside the driver's own calls. These are
 * exported by libcuda.so.1: link to it, or find them with dlsym. */
#ifndef FAKEGPU_H
#define FAKEGPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fakegpu_kind { FAKEGPU_CONTEXT, FAKEGPU_MODULE, FAKEGPU_DATA };

/* The bytes really held on a device (a CUDA ordinal), by this process and by all;
 * dead processes hold nothing. Either pointer may be NULL. 0, or -1 before cuInit
 * or where there is no such device. */
int fakegpu_truth(int device, uint64_t *mine, uint64_t *total);

/* The same for one kind of use. */
int fakegpu_truth_kind(int device, enum fakegpu_kind kind, uint64_t *mine, uint64_t *total);

/* Mistakes of the caller so far, and leaks. */
unsigned fakegpu_errors(void);
unsigned fakegpu_leaks(void);

/* Kernel launches so far. */
unsigned long fakegpu_launches(void);

/* Gates, where calls wait in the middle: "cuMemAlloc" once they have taken effect, or
 * "cuMemAlloc:before", by the names that FAKEGPU_SLOW knows. fakegpu_hold makes the next
 * `calls` of them wait there until fakegpu_open. */
void fakegpu_hold(const char *gate, unsigned calls);
void fakegpu_open(const char *gate);

/* How many calls wait at a gate, or in a full queue ("queue"), once there are n of them or
 * so many milliseconds have passed. */
unsigned fakegpu_held(const char *gate, unsigned n, unsigned ms);

/* The i-th symbol of the driver: the name cuGetProcAddress knows it by, the name it
 * is exported as, since which version, and whether it is the per-thread-stream
 * variant. 0, or -1 past the end. */
int fakegpu_symbol(size_t i, const char **base, const char **exported, int *version, int *per_thread);

#ifdef __cplusplus
}
#endif

#endif
