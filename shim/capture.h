/* Stream capture: while a thread captures a stream, the driver holds some calls against
 * it, also calls of ours that have nothing to do with the stream. */
#ifndef RATION_CAPTURE_H
#define RATION_CAPTURE_H

#include <stdbool.h>

/* capture_begun records that a thread begins to capture a stream, and capture_ended that
 * one has been ended. capture_seen reports whether any ever was begun. */
void capture_begun(void);
void capture_ended(void);
bool capture_seen(void);

/* capture_any reports whether a capture is under way in this process, as far as is known: what is
 * true of a stream its driver knows. */
bool capture_any(void);

/* capture_relax and capture_restore go around such calls; the first returns what the
 * second takes. */
int capture_relax(void);

/* capture_relax_always is for a thread during whose calls another one may begin the first
 * capture. */
int capture_relax_always(void);
void capture_restore(int mode);

#endif
