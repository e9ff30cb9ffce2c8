/* The settings that come from the environment, read once. README.md lists them. */
#ifndef FAKEGPU_KNOBS_H
#define FAKEGPU_KNOBS_H

#include <stdbool.h>
#include <stdint.h>

struct knobs {
	bool context_set;    /* FAKEGPU_CONTEXT was given */
	uint64_t context;    /* FAKEGPU_CONTEXT */
	uint64_t hidden;     /* FAKEGPU_HIDDEN */
	uint64_t block;      /* FAKEGPU_BLOCK */
	bool fragmented;     /* FAKEGPU_FRAGMENTED */
	bool lazy;           /* FAKEGPU_LAZY */
	unsigned latency_us; /* FAKEGPU_LATENCY_US */
	unsigned queue;      /* FAKEGPU_QUEUE; 0: without end */
	bool clock_set;      /* FAKEGPU_CLOCK was given */
	uint64_t clock;      /* FAKEGPU_CLOCK, thousandths */
	bool switch_set;     /* FAKEGPU_SWITCH was given */
	uint64_t switch_ns;  /* FAKEGPU_SWITCH */
	bool resume_set;     /* FAKEGPU_RESUME was given */
	uint64_t resume_ns;  /* FAKEGPU_RESUME */
	uint64_t copy;       /* FAKEGPU_COPY: bytes in a microsecond; 0: copies take no time */
	uint64_t host_ns;    /* FAKEGPU_HOST_FUNCTION */
	bool checkpoint;     /* FAKEGPU_CHECKPOINT was given */
	uint64_t out, back;  /* of it: bytes in a microsecond; 0: takes no time */
};

const struct knobs *knobs(void);

#endif
