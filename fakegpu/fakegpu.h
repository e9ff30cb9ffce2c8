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

/* Finds out what has become of shareable memory that this process has released or imported, as NVML and cuMemGetInfo do. */
void fakegpu_settle(void);

/* The bytes really held on a device (a CUDA ordinal), by this process and by all;
 * dead processes hold nothing. Either pointer may be NULL. 0, or -1 before cuInit
 * or where there is no such device. */
int fakegpu_truth(int device, uint64_t *mine, uint64_t *total);

/* The same for one kind of use. */
int fakegpu_truth_kind(int device, enum fakegpu_kind kind, uint64_t *mine, uint64_t *total);

/* Mistakes of the caller so far, and leaks. */
unsigned fakegpu_errors(void);
unsigned fakegpu_leaks(void);

/* Kernel launches so far, and events recorded, both but for captures. */
unsigned long fakegpu_launches(void);
unsigned long fakegpu_events(void);

/* Gates, where calls wait in the middle: "cuMemAlloc" once they have taken effect, or
 * "cuMemAlloc:before", by the names that FAKEGPU_SLOW knows. fakegpu_hold makes the next
 * `calls` of them wait there until fakegpu_open. */
void fakegpu_hold(const char *gate, unsigned calls);
void fakegpu_open(const char *gate);

/* How many calls wait at a gate, or in a full queue ("queue"), or for work that takes time ("wait"), once there are n of them or
 * so many milliseconds have passed. */
unsigned fakegpu_held(const char *gate, unsigned n, unsigned ms);

/* The books of a device's engine: when whose kernels ran. In ns of the machine's clock. */
struct fakegpu_engine {
	uint64_t now_ns;       /* the books are of this instant */
	uint64_t idle_ns;      /* no context had work */
	uint64_t switching_ns; /* going from one context to another */
	uint64_t switches;
};

struct fakegpu_engine_context {
	uint32_t pid;     /* as NVML shows it */
	uint32_t context; /* a number that no other context of the device ever had */
	uint32_t live;    /* 0: it ended, or its process did */
	uint32_t pad;
	uint64_t slice_us;
	uint64_t submitted_ns; /* of work */
	uint64_t got_ns;       /* of the engine: so much of its work is done */
	uint64_t waited_ns;    /* had work and did not run */
	uint64_t turns;
};

/* Device by NVML's number. Fills up to max contexts, all of one instant, and
 * returns how many there are, those that ended included; -1 where there is no such device.
 * libnvidia-ml.so.1 has it, too. */
int fakegpu_engine(unsigned device, struct fakegpu_engine *out, struct fakegpu_engine_context *list, unsigned max);

/* The machine's clock, in ns; it is set forward by so much first. With FAKEGPU_CLOCK=0 it
 * stands still but for this. -1 before cuInit. */
int64_t fakegpu_clock(uint64_t add_ns);

/* The i-th symbol of the driver: the name cuGetProcAddress knows it by, the name it
 * is exported as, since which version, and whether it is the per-thread-stream
 * variant. 0, or -1 past the end. */
int fakegpu_symbol(size_t i, const char **base, const char **exported, int *version, int *per_thread);

#ifdef __cplusplus
}
#endif

#endif
