#include "footprint.h"

#include <stdio.h>
#include <string.h>

/* add adds a line's figure to a sum if the line is so named. */
static void add(unsigned long *sum, const char *line, const char *name)
{
	unsigned long figure;
	size_t length = strlen(name);
	if (!strncmp(line, name, length) && sscanf(line + length, ": %lu kB", &figure) == 1)
		*sum += figure;
}

static void add_private(unsigned long *sum, const char *line)
{
	add(sum, line, "Private_Clean");
	add(sum, line, "Private_Dirty");
}

static bool read_sums(struct footprint *f)
{
	char line[512];
	FILE *file = fopen("/proc/self/smaps_rollup", "re");
	if (!file)
		return false;
	while (fgets(line, sizeof line, file)) {
		add(&f->rss, line, "Rss");
		add(&f->pss, line, "Pss");
		add_private(&f->private, line);
	}
	fclose(file);
	return true;
}

/* A mapping begins with the line that has its addresses; all others begin with a
 * capital letter. */
static bool read_mappings(struct footprint *f)
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
			add_private(&f->library, line);
		if (region)
			add_private(&f->region, line);
		if (nvml)
			add_private(&f->nvml, line);
	}
	fclose(file);
	return true;
}

bool footprint_read(struct footprint *f)
{
	memset(f, 0, sizeof *f);
	return read_sums(f) && read_mappings(f);
}
