#include "footprint.h"

#include <stdio.h>
#include <string.h>

/* footprint_add adds the value of a line of smaps to a sum, if the line has this name. */
static void footprint_add(unsigned long *sum, const char *line, const char *name)
{
	unsigned long value;
	size_t length = strlen(name);
	if (!strncmp(line, name, length) && sscanf(line + length, ": %lu kB", &value) == 1)
		*sum += value;
}

static void footprint_add_private(unsigned long *sum, const char *line)
{
	footprint_add(sum, line, "Private_Clean");
	footprint_add(sum, line, "Private_Dirty");
}

static bool footprint_read_sums(struct footprint *f)
{
	char line[512];
	FILE *file = fopen("/proc/self/smaps_rollup", "re");
	if (!file)
		return false;
	while (fgets(line, sizeof line, file)) {
		footprint_add(&f->rss, line, "Rss");
		footprint_add(&f->pss, line, "Pss");
		footprint_add_private(&f->private, line);
	}
	fclose(file);
	return true;
}

/* A mapping begins with a line of its addresses and path; all other lines begin with a
 * capital letter. */
static bool footprint_read_mappings(struct footprint *f)
{
	char line[4096 + 256];
	bool library = false, region = false, nvml = false;
	FILE *file = fopen("/proc/self/smaps", "re");
	if (!file)
		return false;
	while (fgets(line, sizeof line, file)) {
		if (line[0] < 'A' || line[0] > 'Z') {
			library = strstr(line, "libration") != NULL;
			region = strstr(line, "region") != NULL;
			nvml = strstr(line, "nvidia-ml") != NULL;
		}
		if (library)
			footprint_add_private(&f->library, line);
		if (region)
			footprint_add_private(&f->region, line);
		if (nvml)
			footprint_add_private(&f->nvml, line);
	}
	fclose(file);
	return true;
}

bool footprint_read(struct footprint *f)
{
	memset(f, 0, sizeof *f);
	return footprint_read_sums(f) && footprint_read_mappings(f);
}
