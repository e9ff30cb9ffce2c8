#include "line.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "region/region.h"

static const char *const codes[] = {
	[REGION_FOREIGN] = "foreign",       [REGION_VERSION] = "version", [REGION_SIZE] = "size",
	[REGION_SYMLINK] = "symlink",       [REGION_OWNER] = "owner",     [REGION_NO_SPACE] = "nospace",
	[REGION_LIMITS] = "limits",         [REGION_SYSTEM] = "other",    [REGION_FULL] = "full",
	[REGION_NOT_HELD] = "notheld",      [REGION_EVICTED] = "evicted", [REGION_DAMAGED] = "damaged",
	[REGION_NOT_REGULAR] = "irregular", [REGION_LOCKED] = "locked",
};
char *rest;
bool usage;

const char *word(void)
{
	char *w = strsep(&rest, " ");
	usage |= !w;
	return w ? w : "";
}

uint64_t number(void)
{
	const char *w = word();
	char *end;
	uint64_t n = strtoull(w, &end, 10);
	usage |= end == w || *end;
	return n;
}

unsigned device(void)
{
	uint64_t d = number();
	usage |= d >= RATION_DEVICES;
	return d < RATION_DEVICES ? (unsigned)d : 0;
}

void ok(const char *format, ...)
{
	va_list arg;
	va_start(arg, format);
	printf(*format ? "ok " : "ok");
	vprintf(format, arg);
	va_end(arg);
	putchar('\n');
}

void failed(int err)
{
	printf("error %s %s (%s)\n", codes[err], region_error_text(err), err == REGION_SYSTEM ? strerror(errno) : "no call failed");
}

void done(int err) { err ? failed(err) : (void)puts("ok"); }
