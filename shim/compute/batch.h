/* Batches: where events are recorded in a stream, and how long the launches between two events
 * took. meter.h explains how a batch is measured; meter.c decides after which launches events are
 * recorded. The caller of all these functions holds the meter's mark (m->mark, see mark.h). */
#ifndef RATION_BATCH_H
#define RATION_BATCH_H

#include "compute/meter_state.h"

/* batch_start records the first event of a new batch. Call it if the stream is idle, if its state
 * is not known, or (copied) behind a copy. now is the CPU's time in ns. */
void batch_start(struct meter *m, struct meter_stream *e, uint64_t now, bool copied);

/* batch_close records an event behind the launches on a stream, which ends their batch. If it
 * cannot, the batch continues. launched: the last launch was made a moment ago. Otherwise the
 * stream has work now, but may have been idle in between if its last event has been reached. */
void batch_close(struct meter *m, struct meter_stream *e, uint64_t now, bool launched);

/* batch_sweep measures all batches that have ended, in the order in which they were closed: a batch
 * may begin with the end of another one, and only the latest intervals are remembered. */
void batch_sweep(struct meter *m);

/* batch_lost returns the estimated time, in ns, of a number of launches that will not be measured.
 * The last measured launches are no basis for it, because a program could choose which launches
 * these are. The launches that chance chose are. But some of them would have been measured anyway;
 * these tell nothing about the ends of bursts, which are the launches that are lost. And a program
 * that notices which launch was chosen can make events follow it. So there are two means, one of
 * all chosen launches and one of those that would have been lost, and the greater one is used. */
uint64_t batch_lost(const struct meter *m, const struct meter_stream *e, uint64_t launches);

/* batch_tail counts an estimate of the launches on a stream that no event follows, plus more ns, as
 * if they began at the stream's last event. It counts no more than the time since that event, and
 * no time that was already counted for other streams. The part of the estimate that exceeds this
 * time is added to the next one, because an estimate that is too high now was too low before, or
 * will be. */
void batch_tail(struct meter *m, struct meter_stream *e, uint64_t now, uint64_t more);

#endif
