/* The host memory of this process, in KiB. Private memory is in pages, clean or dirty, that
 * no other process maps. A mapping is recognised by the path of its file; memory of a
 * library without a file (zeroed variables, anonymous mappings) is only in the sums of the
 * process. */
#ifndef FOOTPRINT_H
#define FOOTPRINT_H

#include <stdbool.h>

struct footprint {
	unsigned long rss, pss, private;
	unsigned long library; /* private, of mappings with "libration" in their path */
	unsigned long region;  /* the same with "region" */
	unsigned long nvml;    /* the same with "nvidia-ml" */
};

/* footprint_read returns false if the kernel does not provide it. */
bool footprint_read(struct footprint *);

#endif
