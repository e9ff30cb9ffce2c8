#include "environment.h"

#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

const char *environment_get(const char *name) { return getauxval(AT_SECURE) ? NULL : getenv(name); }

char **environment_all(void)
{
	static char *none;
	return environ && !getauxval(AT_SECURE) ? environ : &none;
}
