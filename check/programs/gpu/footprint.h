/* The host memory of this process, in KiB. Private memory is in pages, clean or dirty, that no
 * other process maps. A library's mappings are recognised by the path of its file. Its memory
 * that has no path (zeroed variables, anonymous mappings) is only in the process's totals. */
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
