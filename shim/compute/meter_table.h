/* Which context has which meter. A meter is taken from a context that has nothing under way if there are more
 * contexts than meters: those that are launched on by turns are measured all the same, if more slowly. */
#ifndef RATION_METER_TABLE_H
#define RATION_METER_TABLE_H

#include "compute/meter.h"

void meter_table_reset(void);

/* meter_table_find returns a context's meter, or NULL. */
struct meter *meter_table_find(CUcontext context);

/* meter_table_of makes one where there is none. NULL: the context ends, or all are other contexts' that have work under way. force takes
 * one of them all the same, and counts by guess what is under way. */
struct meter *meter_table_of(CUcontext context, struct device *d, bool force);

/* meter_table_ends says whether a context that has no meter to be used has one that is at rest, because the context is
 * being ended, or one of several references to it. */
bool meter_table_ends(CUcontext context);

/* Called before a context is ended, where it was not after all, and once it has been. */
void meter_table_context_ends(CUcontext context);
void meter_table_context_lives(CUcontext context);
void meter_table_context_ended(CUcontext context);

/* Called before a stream is destroyed. */
void meter_table_stream_ends(CUstream stream);

#endif
