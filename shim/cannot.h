/* Why this process cannot sleep now: bits RATION_CANNOT_... in its slot, which the process that puts
 * the job to sleep reads. PROTOCOLS.md, *The gate*. A bit is set before the driver is asked, and
 * cleared after it has undone the last such thing. If this process is killed, its slot goes, too. */
#ifndef RATION_CANNOT_H
#define RATION_CANNOT_H

#include <stdbool.h>
#include <stdint.h>

/* cannot_begin counts one reason more, before the driver is asked, and returns whether it is counted.
 * If the job is asleep or about to fall asleep, it waits until the job is awake: the process that
 * puts it to sleep may have read the bits before. The caller must hold no lock. */
bool cannot_begin(uint64_t bit);

/* cannot_add and cannot_end count n reasons more and fewer. cannot_add is for things that a call
 * between cannot_begin and cannot_end has made. */
void cannot_add(uint64_t bit, uint64_t n);
void cannot_end(uint64_t bit, uint64_t n);

/* cannot_made ends a call that began with cannot_begin, and returns its result. If the driver made
 * what cannot be undone, or no hook sees the end of, the reason stays as long as the process. */
static inline int cannot_made(uint64_t bit, bool begun, int result)
{
	if (begun && result != 0)
		cannot_end(bit, 1);
	return result;
}

/* cannot_show writes the bits to a new slot of this process. */
void cannot_show(void);

/* cannot_look sets the bits that do not change, when this process has joined. cannot_reset clears the
 * state that a fork handed down. */
void cannot_look(void);
void cannot_reset(void);

#endif
