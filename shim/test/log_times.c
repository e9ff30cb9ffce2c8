/* The times in a log file, at days on which calendars go wrong. The clock is the test's: a
 * program's own clock_gettime comes before the C library's. */
#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>

#include "check.h"

static time_t now;

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t)
{
	if (id != CLOCK_REALTIME)
		return (int)syscall(SYS_clock_gettime, id, t);
	*t = (struct timespec){now, 7000000};
	return 0;
}

/* The last line of the log. */
static const char *last(void)
{
	static char line[1024];
	FILE *f = fopen(getenv("RATION_LOG_FILE"), "r");
	line[0] = 0;
	while (f && fgets(line, sizeof line, f))
		;
	if (f)
		fclose(f);
	return line;
}

int main(void)
{
	static const struct {
		time_t second;
		const char *text;
	} times[] = {
		{0, "1970-01-01T00:00:00.007Z"},          {951782399, "2000-02-28T23:59:59.007Z"},
		{951782400, "2000-02-29T00:00:00.007Z"},  {951868800, "2000-03-01T00:00:00.007Z"},
		{1709251199, "2024-02-29T23:59:59.007Z"}, {1735689599, "2024-12-31T23:59:59.007Z"},
		{1735689600, "2025-01-01T00:00:00.007Z"}, {1772323199, "2026-02-28T23:59:59.007Z"},
		{1772323200, "2026-03-01T00:00:00.007Z"}, {4107542400, "2100-03-01T00:00:00.007Z"},
		{4294967296, "2106-02-07T06:28:16.007Z"},
	};
	char wanted[64];
	for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
		now = times[i].second;
		(void)!dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"); /* which is logged */
		snprintf(wanted, sizeof wanted, "ration[%d] %s dates: resolves ", (int)getpid(), times[i].text);
		if (strncmp(last(), wanted, strlen(wanted)) != 0)
			fprintf(stderr, "got %s, not %s\n", last(), wanted);
		CHECK(strncmp(last(), wanted, strlen(wanted)) == 0);
	}
	return FINISH();
}
