/* Stream capture: while a thread captures a stream, the driver holds some calls against
 * it, also calls of ours that have nothing to do with the stream. */
#ifndef RATION_CAPTURE_H
#define RATION_CAPTURE_H

#include <stdbool.h>

/* capture_begun records that a stream of this process is captured. capture_seen reports
 * whether any ever was. */
void capture_begun(void);
bool capture_seen(void);

/* capture_relax and capture_restore go around such calls; the first returns what the
 * second takes. */
int capture_relax(void);
void capture_restore(int mode);

#endif
