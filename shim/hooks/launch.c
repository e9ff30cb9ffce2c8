/* Calls that take a device's time, wait for it, or ask about it. compute/compute.c does the
 * work beside the driver's call. If a thread is cancelled in the driver's call, nothing needs
 * to be undone here, so these hooks do not disable cancellation, unlike all others. The
 * exception is calls that wait: a thread cancelled there would count as waiting for ever. */
#include <pthread.h>

#include "arguments.h"
#include "compute/compute.h"
#include "gate.h"
#include "hooks.h"

/* LAUNCH_STREAM returns a handle for the stream on which one driver call can record an event,
 * also for the per-thread default stream. */
#define LAUNCH_STREAM(stream, per_thread) ((per_thread) && !(stream) ? CU_STREAM_PER_THREAD : (CUstream)(stream))

/* LAUNCH_RETURN ends a hook with a result. */
#define LAUNCH_RETURN(result)          \
	do {                           \
		int ended_ = (result); \
		if (unlikely(closed_)) \
			gate_opened(); \
		return ended_;         \
	} while (0)

/* LAUNCH_BEGIN begins a hook: call_ is the driver's function, and closed_ whether the job sleeps. */
#define LAUNCH_BEGIN(symbol, gate)                   \
	real_##symbol call_ = RATION_REAL(symbol);   \
	if (unlikely(!call_))                        \
		return ration_absent(CALL_##symbol); \
	bool closed_ = gate(GATE_ASKS)

#define TIMED_LAUNCH(symbol, per_thread, params, stream_)                                                           \
	int entry_##symbol params                                                                                   \
	{                                                                                                           \
		LAUNCH_BEGIN(symbol, gate_pass);                                                                    \
		if (likely(!attach_compute() || !compute_launch_begins(LAUNCH_STREAM(stream_, per_thread), false))) \
			LAUNCH_RETURN(call_ ARGUMENTS_##symbol);                                                    \
		int result_ = call_ ARGUMENTS_##symbol;                                                             \
		compute_launch_ended(LAUNCH_STREAM(stream_, per_thread));                                           \
		LAUNCH_RETURN(result_);                                                                             \
	}

#define TIMED_WAIT(symbol, per_thread, params, stream_)                   \
	int entry_##symbol params                                         \
	{                                                                 \
		LAUNCH_BEGIN(symbol, gate_pass);                          \
		if (likely(!attach_compute()))                            \
			LAUNCH_RETURN(call_ ARGUMENTS_##symbol);          \
		int cancel_;                                              \
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_); \
		struct device *device_ = compute_wait_begin();            \
		int result_ = call_ ARGUMENTS_##symbol;                   \
		compute_wait_end(device_);                                \
		pthread_setcancelstate(cancel_, &cancel_);                \
		LAUNCH_RETURN(result_);                                   \
	}

#define TIMED_QUERY(symbol, per_thread, params, stream_)         \
	int entry_##symbol params                                \
	{                                                        \
		LAUNCH_BEGIN(symbol, gate_look);                 \
		if (likely(!attach_compute()))                   \
			LAUNCH_RETURN(call_ ARGUMENTS_##symbol); \
		int result_ = call_ ARGUMENTS_##symbol;          \
		compute_answered(result_);                       \
		LAUNCH_RETURN(result_);                          \
	}

/* A call before which `noted` is done. */
#define TIMED_NOTED(symbol, params, noted)               \
	int entry_##symbol params                        \
	{                                                \
		LAUNCH_BEGIN(symbol, gate_pass);         \
		noted;                                   \
		LAUNCH_RETURN(call_ ARGUMENTS_##symbol); \
	}

#define TIMED_COPY(symbol, per_thread, params, stream_) \
	TIMED_NOTED(symbol, params, if (unlikely(attach_compute())) compute_copy_begins(LAUNCH_STREAM(stream_, per_thread)))
#define TIMED_USE(symbol, per_thread, params, stream_) TIMED_NOTED(symbol, params, (void)0)
#define TIMED_EVENT_WAIT(symbol, per_thread, params, stream_) \
	TIMED_NOTED(symbol, params, if (unlikely(attach_compute())) compute_event_wait_begins(LAUNCH_STREAM(stream_, per_thread), event))
#define TIMED_STREAM_END(symbol, per_thread, params, stream_) TIMED_NOTED(symbol, params, compute_stream_ends(stream_))

#define TIMED(kind, family, symbol, base, version, per_thread, params, stream, text) TIMED_##kind(symbol, per_thread, params, stream)
#include "hooks.def"
