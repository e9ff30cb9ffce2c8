/* Stream capture: while a thread captures a stream, the driver treats some calls as errors, and
 * this includes calls that this library makes and that have nothing to do with the stream. */
#ifndef RATION_CAPTURE_H
#define RATION_CAPTURE_H

#include <stdbool.h>

#include "cuda.h"

/* capture_begun records that a thread begins to capture a stream, capture_ended that a capture
 * has ended. capture_seen reports whether this process has ever begun a capture. */
void capture_begun(void);
void capture_ended(void);
bool capture_seen(void);

/* capture_any reports whether a capture is under way in this process, by our count. The count
 * may be wrong: only the driver knows the state of a stream. */
bool capture_any(void);

/* capture_hold keeps all threads from beginning a capture until capture_unhold, for a second at most: a call
 * of the driver that waits for a context fails if a stream of the context is being captured, and ends that
 * capture; but it may wait for what the other thread does next.
 * It returns false, and holds nothing, if a capture is under way. */
bool capture_hold(void);
void capture_unhold(void);

/* Call capture_relax before a driver call that a capture could make fail, and capture_restore
 * after it, with the mode that capture_relax returned. */
int capture_relax(void);

/* capture_relax_always does the same as capture_relax even if no capture has been seen: it is
 * for calls during which another thread may begin the first capture. */
int capture_relax_always(void);
void capture_restore(int mode);

/* capture_stream_valid asks the driver whether a stream is valid, captured or not. per_thread: a null
 * stream is the thread's own. */
bool capture_stream_valid(CUstream stream, bool per_thread);

#endif
