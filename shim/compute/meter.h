/* How long a context's kernels occupied their device, found out by events beside launches. All
 * of a stream's launches between two events are a batch. A batch's time is that from its first
 * event to its last, if the stream had work all the while; and of batches of several streams that
 * overlap, the time counts once.
 *
 * So each launch that is looked at asks first whether the stream's last event has been reached. If not, the stream had work all
 * the while: its batch goes on, or the next one begins with the end of the last. If it has, the device may have been idle since:
 * a program whose kernels are short is slower than the device, and what it launched since then is not known. Of such
 * launches some are measured, chosen by chance so that no program can tell which, and the others are taken for as long. Each counts
 * for as many as it was chosen from; one that is measured for another reason (a graph, after a pause or a copy) says nothing of others. What no event follows is the end
 * of a burst, and may be unlike its beginning, of which all is measured: so the mean is taken both of all that were chosen and of those that would not have been measured otherwise, and the greater one counts. That is right in
 * the long run whatever they take, and one is chosen every 2 ms or so, as a launch may take all the time until the next. What runs at the moment of a look is measured to its end, since the last launch at least. But a kernel that may have run
 * through a long pause and has ended must not be left to chance: from the first one on that was missed so, an event follows each.
 *
 * Launches between two looks are few after the cap has made the program wait, as the device is idle then and works off each launch before the
 * next one comes; and ever more while it does not.
 *
 * Copies and host functions run beside kernels and are free: one ends its stream's batch, and the next launch
 * begins anew behind it.
 *
 * An event is recorded on a stream only by a thread that is just launching or copying on it, or that launched on it
 * before it waits for the device: whatever happens to other threads' streams (they end, they are captured), nothing here
 * touches them. A stream that another thread ends is left alone once that has begun.
 *
 * A context's meter is taken by a mark. */
#ifndef RATION_METER_H
#define RATION_METER_H

#include "compute/meter_state.h"

/* meter_reset forgets all, in a process that has just opened the region. used is called for what
 * contexts' kernels took. */
void meter_reset(void (*used)(const struct device *d, uint64_t ns));

/* meter_is says whether a meter is this context's, which lives; meter_is_free whether it is none's. */
bool meter_is(const struct meter *m, CUcontext context);
bool meter_is_free(const struct meter *m);

/* meter_assign makes a meter a context's, and says whether it could: if it is free; or, too, if its context has nothing
 * under way; or whatever that has, which is counted by guess. Not where another thread is at it. */
enum meter_assignment { METER_IF_FREE, METER_IF_IDLE, METER_ANYWAY };
bool meter_assign(struct meter *m, CUcontext context, struct device *d, enum meter_assignment how);

/* meter_crowd says that there are more contexts than meters: from now on an event follows each launch, as a meter may be
 * needed for another context after any of them. */
void meter_crowd(void);

/* meter_passes is called before every launch: true, and counted, if it need not be looked at.
 * Otherwise meter_begins is called, which returns false if the meter has become another context's, and, if it sets *ends, meter_ends after
 * the launch. alone: a graph, of whose length other launches say nothing. idle: the cap made the thread wait until the
 * context had no work. */
bool meter_passes(CUstream stream, bool alone);
bool meter_begins(struct meter *m, CUcontext context, CUstream stream, bool alone, bool idle, bool *ends);
void meter_ends(CUstream stream);

/* meter_pauses is for a thread that will wait before it launches on the stream. */
void meter_pauses(struct meter *m, CUcontext context, CUstream stream);

/* meter_copies is for a thread that is about to put something that is no kernel into a stream: what comes between two
 * launches in this way is none of their time. */
void meter_copies(struct meter *m, CUcontext context, CUstream stream);

/* meter_waits is for a thread that is about to wait for the device, or found that it has work: it puts
 * an event behind what it has launched, as no further launch may come before the stream is idle. */
void meter_waits(struct meter *m, CUcontext context);

/* meter_read counts what has ended. The context is current. */
void meter_read(struct meter *m, CUcontext context);

/* meter_flight returns what is thought to be under way, in ns: 0 nothing, METER_MUCH more than one should
 * add to. */
#define METER_MUCH UINT64_C(1000000000)
uint64_t meter_flight(const struct meter *m, CUcontext context, uint64_t now);

/* meter_give_up says that a launch waited in vain for what is under way: until some of it ends,
 * none is. */
void meter_give_up(struct meter *m);

/* meter_stream_ends is called before a stream is destroyed. meter_context_ends is called before a
 * context is, meter_context_lives where it was not, and meter_context_ended once it has ended. */
void meter_stream_ends(struct meter *m, CUstream stream);
void meter_context_ends(struct meter *m);
void meter_context_lives(struct meter *m);
void meter_context_ended(struct meter *m);

#endif
