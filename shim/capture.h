/* Stream capture: while a thread captures a stream, the driver holds some calls against
 * it, also calls of ours that have nothing to do with the stream. */
#ifndef RATION_CAPTURE_H
#define RATION_CAPTURE_H

#include <stdbool.h>

/* capture_begun records that this thread has begun to capture a stream, and capture_ended that
 * one has been ended. capture_seen reports whether any ever was begun. */
void capture_begun(void);
void capture_ended(void);
bool capture_seen(void);

/* capture_any reports whether a capture is under way in this process, and capture_own whether
 * this thread began one. A stream that was destroyed while it was captured, and never ended,
 * counts on. */
bool capture_any(void);
bool capture_own(void);

/* capture_relax and capture_restore go around such calls; the first returns what the
 * second takes. */
int capture_relax(void);
void capture_restore(int mode);

#endif
