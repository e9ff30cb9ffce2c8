/* Calls that take a device's time, wait for it, or ask about it. compute/compute.c does the
 * work beside the driver's call. If a thread is cancelled in the driver's call, nothing needs
 * to be undone here, so these hooks do not disable cancellation, unlike all others. The
 * exception is calls that wait: a thread cancelled there would count as waiting for ever. */
#include <pthread.h>

#include "arguments.h"
#include "compute/compute.h"
#include "gate.h"
#include "hooks.h"
#include "hooks/graph_capture.h"
#include "hooks/lane.h"

/* LAUNCH_STREAM returns a handle for the stream on which one driver call can record an event,
 * also for the per-thread default stream. */
#define LAUNCH_STREAM(stream, per_thread) ((per_thread) && !(stream) ? CU_STREAM_PER_THREAD : (CUstream)(stream))

/* LAUNCH_HOOK defines a hook. It goes straight to the driver unless the job sleeps, or has a share, a
 * cap or a priority: then looks is run. In looks, call_ is the driver's function. mode: at the gate. */
#define LAUNCH_HOOK(symbol, params, mode, looks)                                                 \
	static __attribute__((noinline)) int launch_##symbol params                              \
	{                                                                                        \
		real_##symbol call_ = RATION_REAL(symbol);                                       \
		if (!call_)                                                                      \
			return ration_absent(CALL_##symbol);                                     \
		struct gate_stay stay_ = gate_enter(mode);                                       \
		int result_;                                                                     \
		looks;                                                                           \
		gate_leave(stay_);                                                               \
		return result_;                                                                  \
	}                                                                                        \
	int entry_##symbol params                                                                \
	{                                                                                        \
		void *real_ = __atomic_load_n(&interpose_real[CALL_##symbol], __ATOMIC_RELAXED); \
		if (likely(attach_straight() && real_))                                          \
			return ((real_##symbol)real_)ARGUMENTS_##symbol;                         \
		return launch_##symbol ARGUMENTS_##symbol;                                       \
	}

#define TIMED_LAUNCH(symbol, per_thread, params, stream_)                                                          \
	LAUNCH_HOOK(symbol, params, GATE_ASKS, {                                                                   \
		bool ends_ = attach_compute() && compute_launch_begins(LAUNCH_STREAM(stream_, per_thread), false); \
		result_ = call_ ARGUMENTS_##symbol;                                                                \
		if (ends_)                                                                                         \
			compute_launch_ended(LAUNCH_STREAM(stream_, per_thread));                                  \
	})

/* In the driver it counts as having work. So while the job sleeps, it waits at the gate. */
#define TIMED_WAIT(symbol, per_thread, params, stream_)                           \
	LAUNCH_HOOK(symbol, params, attach_compute() ? GATE_WAITS : GATE_ASKS, {  \
		if (!attach_compute()) {                                          \
			result_ = call_ ARGUMENTS_##symbol;                       \
		} else {                                                          \
			int cancel_;                                              \
			pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_); \
			struct device *device_ = compute_wait_begin();            \
			result_ = call_ ARGUMENTS_##symbol;                       \
			compute_wait_end(device_);                                \
			pthread_setcancelstate(cancel_, &cancel_);                \
		}                                                                 \
	})

#define TIMED_QUERY(symbol, per_thread, params, stream_) \
	LAUNCH_HOOK(symbol, params, GATE_ASKS, {         \
		result_ = call_ ARGUMENTS_##symbol;      \
		if (attach_compute())                    \
			compute_answered(result_);       \
	})

#define TIMED_COPY(symbol, per_thread, params, stream_)                          \
	LAUNCH_HOOK(symbol, params, GATE_ASKS, {                                 \
		if (attach_compute())                                            \
			compute_copy_begins(LAUNCH_STREAM(stream_, per_thread)); \
		result_ = call_ ARGUMENTS_##symbol;                              \
	})

#define TIMED_USE(symbol, per_thread, params, stream_) LAUNCH_HOOK(symbol, params, GATE_ASKS, result_ = call_ ARGUMENTS_##symbol)

#define TIMED_EVENT_WAIT(symbol, per_thread, params, stream_)                                 \
	LAUNCH_HOOK(symbol, params, GATE_ASKS, {                                              \
		if (attach_compute())                                                         \
			compute_event_wait_begins(LAUNCH_STREAM(stream_, per_thread), event); \
		result_ = call_ ARGUMENTS_##symbol;                                           \
	})

/* In every process: the end of a capture counts without a share, too. */
#define TIMED_STREAM_END(symbol, per_thread, params, stream_)          \
	int entry_##symbol params                                      \
	{                                                              \
		real_##symbol call_ = RATION_REAL(symbol);             \
		if (unlikely(!call_))                                  \
			return ration_absent(CALL_##symbol);           \
		struct gate_stay stay_ = gate_enter(GATE_ASKS);        \
		CUstream origin_ = graph_capture_stream_ends(stream_); \
		compute_stream_ends(stream_);                          \
		int result_ = call_ ARGUMENTS_##symbol;                \
		graph_capture_stream_ended(origin_);                   \
		lane_free_late();                                      \
		gate_leave(stay_);                                     \
		return result_;                                        \
	}

#define TIMED(kind, family, symbol, base, version, per_thread, params, stream, text) TIMED_##kind(symbol, per_thread, params, stream)
#include "hooks.def"
