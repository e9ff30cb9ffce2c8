/* Says by its status whether /proc/self/stat is the kernel's. An emulator makes it up: it writes
 * zeros for what it does not know, and a time of its own for the process's start. */
#include <stdio.h>
#include <string.h>

int main(void)
{
	enum { FLAGS = 9 };
	char buf[1024] = "";
	FILE *f = fopen("/proc/self/stat", "r");
	if (!f || !fgets(buf, sizeof buf, f))
		return 1;
	char *p = strrchr(buf, ')');
	for (int field = 3; p && field <= FLAGS; field++)
		p = strchr(p + 1, ' ');
	/* Of a process that has not become another program by exec, or has: never 0. */
	return !p || strncmp(p, " 0 ", 3) == 0;
}
