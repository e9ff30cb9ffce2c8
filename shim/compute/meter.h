/* A meter measures how long a context's kernels occupied their device, by events that it records
 * beside launches. The launches of a stream between two events are a batch. The time of a batch is
 * the time from its first event to its last, if the stream had work all the while. If batches of
 * several streams overlap, the time counts once.
 *
 * So each launch that is looked at first asks whether the stream's last event has been reached. If
 * not, the stream had work all the while: its batch continues, or the next batch begins with the
 * end of the last one. If the event has been reached, the device may have been idle since: a
 * program with short kernels is slower than the device, and the time of the launches since then is
 * not known (they are lost).
 *
 * Some of such launches are measured, chosen at random so that no program can tell which, and the
 * others are charged the mean of the chosen ones. Each chosen launch counts for as many as it was
 * chosen from. A launch that is measured for another reason (a graph, after a pause or a copy) does
 * not enter the mean. The lost launches are at the end of a burst, and may differ from its
 * beginning, which is measured completely. So there are two means, one of all chosen launches and
 * one of those that would not have been measured otherwise, and the greater one is used. This is
 * right on average however long launches take. One launch is chosen about every 2 ms, because a
 * launch may take all the time until the next one. If a stream has work when it is looked at, its
 * time is measured until the end of that work, at least from its last launch on. But a kernel that
 * may have run through a long pause, and has ended, must not be left to chance: after the first
 * such kernel was missed, an event follows each launch.
 *
 * After the cap has made the program wait, launches are looked at often, because the device is idle
 * then and finishes each launch before the next one comes; later, ever more rarely.
 *
 * Copies and host functions run beside kernels and are not charged: one of them ends its stream's
 * batch, and the next launch begins a new batch behind it.
 *
 * A thread records an event only on a stream on which it is just launching or copying, or on which
 * it has launched before it waits for the device. So nothing here uses a stream that another thread
 * may be ending or capturing. Once a thread has begun to end a stream, no other uses it here.
 *
 * A thread takes a context's meter by the mark in it (mark.h). The functions below take the mark
 * themselves; some give up if they do not get it. */
#ifndef RATION_METER_H
#define RATION_METER_H

#include "compute/meter_state.h"

/* meter_reset clears all state, in a process that has just opened the region. used will be called
 * with the time, in ns, that kernels have used on a device; uncharged, whenever the time has changed
 * since when a context on a device has had work that is not counted yet (meter_uncharged). */
void meter_reset(void (*used)(const struct device *d, uint64_t ns, uint64_t in_turn_ns), void (*uncharged)(const struct device *d));

/* meter_uncharged returns since when a meter's context on this device has had work that is not
 * counted yet, in ns; 0 if it has none. If the process ends now, that time is charged instead. */
uint64_t meter_uncharged(const struct meter *m, const struct device *d);

/* meter_is returns true if the meter belongs to this context and the context is alive;
 * meter_is_free, if it belongs to no context. */
bool meter_is(const struct meter *m, CUcontext context);
bool meter_is_free(const struct meter *m);

/* meter_assign gives a meter to a context, and returns true if it could. METER_IF_FREE: only a free
 * meter. METER_IF_IDLE: also a meter whose context has nothing under way. METER_ANYWAY: also one
 * whose context has; then that work is counted by an estimate. It returns false if another thread
 * has the meter's mark. */
enum meter_assignment { METER_IF_FREE, METER_IF_IDLE, METER_ANYWAY };
bool meter_assign(struct meter *m, CUcontext context, struct device *d, enum meter_assignment how);

/* meter_crowd is called when there are more contexts than meters. From then on an event follows
 * each launch, because after any launch the meter may be needed for another context. */
void meter_crowd(void);

/* meter_passes is called before every launch. It returns true, and counts the launch, if the launch
 * need not be looked at. Otherwise the caller calls meter_begins, which returns false if the meter
 * now belongs to another context; and, if that has set *ends, meter_ends after the launch. graph: the
 * launch is a graph; behind a kernel, which tells nothing about its length, it is looked at. idle:
 * the cap made the thread wait until the context had no work. */
bool meter_passes(CUstream stream, bool graph);
bool meter_begins(struct meter *m, CUcontext context, CUstream stream, bool graph, bool idle, bool *ends);
void meter_ends(CUstream stream);

/* meter_pauses is called before a thread waits for the cap and then launches on the stream. */
void meter_pauses(struct meter *m, CUcontext context, CUstream stream);

/* meter_copies is called before a thread puts work that is not a kernel into a stream, so that the
 * time of this work is not counted with the launches before and after it. */
void meter_copies(struct meter *m, CUcontext context, CUstream stream);

/* meter_waits is called before a thread waits for the device, or when it has found that the device
 * has work. It records an event behind the thread's launches, because no further launch may come
 * before the stream is idle. */
void meter_waits(struct meter *m, CUcontext context);

/* meter_read counts the batches that have ended. The context must be current. */
void meter_read(struct meter *m, CUcontext context);

/* meter_flight returns the estimated time of the launches under way, in ns: 0 if there are none,
 * METER_MUCH if there are so many that no launch should be added. */
#define METER_MUCH UINT64_C(1000000000)
uint64_t meter_flight(const struct meter *m, CUcontext context, uint64_t now);

/* meter_give_up is called when a launch has waited in vain for launches under way. Until one of
 * them ends, meter_flight returns 0. */
void meter_give_up(struct meter *m);

/* meter_stream_ends is called before a stream is destroyed. meter_context_ends is called before a
 * context is destroyed; afterwards meter_context_ended is called if it has ended,
 * meter_context_lives if not. */
void meter_stream_ends(struct meter *m, CUstream stream);
void meter_context_ends(struct meter *m);
void meter_context_lives(struct meter *m);
void meter_context_ended(struct meter *m);

#endif
