/* Batches: where events go in a stream, and what they say of the launches between them. How a batch is measured is told
 * in meter.h; which launches events follow is decided in meter.c. All with the meter's mark. */
#ifndef RATION_BATCH_H
#define RATION_BATCH_H

#include "compute/meter_state.h"

/* batch_start begins anew, on a stream that is idle or of which nothing is known, or behind a copy. */
void batch_start(struct meter *m, struct meter_stream *e, uint64_t now, bool copied);

/* batch_close ends the batch of what was launched on a stream so far. Where that cannot be, it goes
 * on. launched: a moment ago; otherwise the stream has work, and may have had none meanwhile if its last event
 * has been reached. */
void batch_close(struct meter *m, struct meter_stream *e, uint64_t now, bool launched);

/* batch_sweep measures all batches that have ended, those that were closed first before others: a
 * batch may begin with the end of another, and only the latest intervals are remembered. */
void batch_sweep(struct meter *m);

/* batch_lost returns what so many launches took that will not be measured. What the last ones took says nothing of them: a program
 * could choose which that are. Those that chance chose do. Of them, those that would have been measured anyway say nothing of the ends of
 * bursts, which are what is lost; but a program that notices which was chosen can see to it that events follow. So it is the greater mean, of all or of the others. */
uint64_t batch_lost(const struct meter *m, const struct meter_stream *e, uint64_t launches);

/* batch_tail counts by guess, and so much more, what was launched on a stream and no event follows, as if it began with the
 * last event; but no more than the time since, and not what was counted with other streams. A guess that is too high now was too low
 * before, or will be: what exceeds that time is counted with what is lost next. */
void batch_tail(struct meter *m, struct meter_stream *e, uint64_t now, uint64_t more);

#endif
