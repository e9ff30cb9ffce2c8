/* What a process takes of the host's memory, in KiB. Private is what would be free
 * if it ended: pages, clean or dirty, that nobody else maps. A mapping is known by
 * the path of its file; what a library has beyond its file (zeroed variables, what
 * it mapped for itself) has none, and is in the sums of the process only. */
#ifndef FOOTPRINT_H
#define FOOTPRINT_H

#include <stdbool.h>

struct footprint {
	unsigned long rss, pss, private;
	unsigned long library; /* private, of mappings with libration in their path */
	unsigned long region;  /* with region */
	unsigned long nvml;    /* with nvidia-ml */
};

/* footprint_read is false where the kernel does not tell. */
bool footprint_read(struct footprint *);

#endif
