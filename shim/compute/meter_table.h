/* The table of meters, and which context each belongs to. If there are more contexts than meters, a
 * context takes the meter of another one that has nothing under way. So contexts that are used by
 * turns are all measured, but more slowly. */
#ifndef RATION_METER_TABLE_H
#define RATION_METER_TABLE_H

#include "compute/meter.h"

void meter_table_reset(void);

/* meter_table_find returns the meter of a living context, or NULL. */
struct meter *meter_table_find(CUcontext context);

/* meter_table_of returns a context's meter, and gives it one if it has none. It returns NULL if the
 * context is ending, or if all meters belong to contexts with work under way. force: take one of
 * these meters all the same, and count its work under way by an estimate. */
struct meter *meter_table_of(CUcontext context, struct device *d, bool force);

/* meter_table_ends returns true if a context has a meter, also one that is not in use because the
 * context, or one of several references to it, is being ended. */
bool meter_table_ends(CUcontext context);

/* meter_table_context_ends is called before a context is destroyed. Afterwards
 * meter_table_context_ended is called if it has ended, meter_table_context_lives if not. */
void meter_table_context_ends(CUcontext context);
void meter_table_context_lives(CUcontext context);
void meter_table_context_ended(CUcontext context);

/* meter_table_uncharged returns since when any context on a device has had work that is not counted
 * yet, in ns; 0 if none has. */
uint64_t meter_table_uncharged(const struct device *d);

/* meter_table_stream_ends is called before a stream is destroyed. */
void meter_table_stream_ends(CUstream stream);

#endif
