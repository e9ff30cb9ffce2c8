/* How processes ask another one for a checkpoint: a letterbox in its record of the machine's file.
 *
 * A request is one word, (number, verb), and so is an answer, (number, result). One request at a
 * time: while there is one, others are refused. A request is done, too, if the process that asked has
 * ended meanwhile. */
#ifndef FAKEGPU_LETTERBOX_H
#define FAKEGPU_LETTERBOX_H

#include <stdint.h>

enum { LETTERBOX_ANSWERS = 4 };

struct letterbox {
	uint64_t open;                      /* a thread of the process reads it */
	uint64_t request;                   /* number << 8 | verb; a verb of 0: none is under way */
	uint64_t answer[LETTERBOX_ANSWERS]; /* number << 16 | result, by number */
	uint32_t timeout_ms;                /* of the request to lock */
	uint32_t state;                     /* CUprocessState */
	uint64_t pad;
};

#endif
