/* Calls for tests, beside the driver's own. libcuda.so.1 exports them: link to it, or find them
 * with dlsym. */
#ifndef FAKEGPU_H
#define FAKEGPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum fakegpu_kind { FAKEGPU_CONTEXT, FAKEGPU_MODULE, FAKEGPU_DATA };

/* Sets *mine and *total to the bytes that this process and all processes really hold on a device (a
 * CUDA ordinal); dead processes hold nothing. Either pointer may be NULL. Returns 0, or -1 before
 * cuInit or if there is no such device. */
int fakegpu_truth(int device, uint64_t *mine, uint64_t *total);

/* The same for one kind of use. */
int fakegpu_truth_kind(int device, enum fakegpu_kind kind, uint64_t *mine, uint64_t *total);

/* Shareable memory on a device, in bytes. It counts for no process if a descriptor exists, and its
 * maker has released it or has ended. Returns 0, or -1 before cuInit or if there is no such device. */
struct fakegpu_shared {
	uint64_t lent;     /* counts for no process; this process made it */
	uint64_t adopted;  /* counts for this process, which imported it; its maker has released it or has ended */
	uint64_t unlisted; /* all that counts for no process */
	uint64_t orphaned; /* the part of unlisted whose maker has ended */
};
int fakegpu_shared(int device, struct fakegpu_shared *out);

/* How many mistakes of the caller, and how many leaks, were found so far. */
unsigned fakegpu_errors(void);
unsigned fakegpu_leaks(void);

/* How many kernels were launched, and how many events were recorded so far, without those in
 * captures. */
unsigned long fakegpu_launches(void);
unsigned long fakegpu_events(void);

/* Gates make calls wait in the middle. A gate is named after a call, by the names that FAKEGPU_SLOW
 * knows: "cuMemAlloc" waits after the call has taken effect, "cuMemAlloc:before" before.
 * fakegpu_hold makes the next `calls` such calls wait until fakegpu_open. */
void fakegpu_hold(const char *gate, unsigned calls);
void fakegpu_open(const char *gate);

/* Waits until n calls wait at a gate, or ms milliseconds have passed, and returns how many wait.
 * Other names: "queue" for calls that wait in a full queue, "wait" for calls that wait for work
 * that takes time. */
unsigned fakegpu_held(const char *gate, unsigned n, unsigned ms);

/* The accounts of a device's engine: when each context's kernels ran. In ns of the machine's clock. */
struct fakegpu_engine {
	uint64_t now_ns;       /* the time of the accounts */
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
	uint64_t got_ns;       /* time for which the engine has run its work */
	uint64_t waited_ns;    /* time for which it had work and did not run */
	uint64_t turns;
};

/* device is NVML's number. Fills list with up to max contexts, all of one instant. Returns how many
 * there are, with those that have ended; -1 if there is no such device. libnvidia-ml.so.1 exports
 * it, too. */
int fakegpu_engine(unsigned device, struct fakegpu_engine *out, struct fakegpu_engine_context *list, unsigned max);

/* Moves the machine's clock forward by add_ns, and returns its time in ns; -1 before cuInit. With
 * FAKEGPU_CLOCK=0 only this call moves the clock. */
int64_t fakegpu_clock(uint64_t add_ns);

/* The i-th symbol of the driver: the name cuGetProcAddress knows it by, the name it
 * is exported as, since which version, and whether it is the per-thread-stream
 * variant. 0, or -1 past the end. */
int fakegpu_symbol(size_t i, const char **base, const char **exported, int *version, int *per_thread);

#ifdef __cplusplus
}
#endif

#endif
