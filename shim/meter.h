/* How long a context's kernels occupied their device, found out by events beside launches. All
 * of a stream's launches between two events are a batch. A batch's time is that from its first
 * event to its last, if the stream had work all the while; and of batches of several streams that
 * overlap, the time counts once.
 *
 * So each launch that is looked at asks first whether its stream still has work. If it has, its
 * batch goes on, or the next one begins with the end of the last; if not, the device may have been
 * idle since, and an event before the launch begins anew. Launches between two looks are few after
 * the cap has made the program wait, as the device is idle then and works off each launch before the
 * next one comes; and ever more while it does not.
 *
 * An event is recorded on a stream only by a thread that is just launching on it, or that launched on it
 * before it waits for the device: whatever happens to other threads' streams (they end, they are captured), nothing here
 * touches them. A stream that another thread ends is left alone once that has begun.
 *
 * A context's meter is taken by a mark. It is no lock: a thread that waited for it for a second does without,
 * and so do others until it is given back. */
#ifndef RATION_METER_H
#define RATION_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "device.h"

struct meter;

/* meter_reset forgets all, in a process that has just opened the region. used is called for what
 * contexts' kernels took. */
void meter_reset(void (*used)(const struct device *d, uint64_t ns));

/* meter_find returns a context's meter, or NULL; meter_of makes one, if need be from that of the
 * context that was not used for longest, and returns NULL only
 * where other threads are at it. */
struct meter *meter_find(CUcontext context);
struct meter *meter_of(CUcontext context, struct device *d);

/* meter_passes is called before every launch: true, and counted, if it need not be looked at.
 * Otherwise meter_begins is called, and if that says so meter_ends after the launch. alone: a graph, of whose
 * length other launches say nothing. idle: the cap made the thread wait until the
 * context had no work. */
bool meter_passes(CUstream stream, bool alone);
bool meter_begins(struct meter *m, CUcontext context, CUstream stream, bool alone, bool idle);
void meter_ends(CUstream stream);

/* meter_pauses is for a thread that will wait before it launches on the stream. */
void meter_pauses(struct meter *m, CUcontext context, CUstream stream);

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
 * context is, meter_context_lives where it was not, and meter_forget once it has ended. */
void meter_stream_ends(CUstream stream);
void meter_context_ends(CUcontext context);
void meter_context_lives(CUcontext context);
void meter_forget(CUcontext context);

#endif
