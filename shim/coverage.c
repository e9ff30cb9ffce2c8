/* Writes docs/coverage.md from hooks.def. Not part of the library. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum row_type { FAMILY_ROW, HOOK_ROW, PASS_ROW };

static const struct row {
	enum row_type type;
	const char *family, *name, *base, *text;
	int version, per_thread;
} rows[] = {
#define FAMILY(family, title, text) {FAMILY_ROW, #family, title, "", text, 0, 0},
#define HOOK(family, symbol, base, version, per_thread, params, text) {HOOK_ROW, #family, #symbol, #base, text, version, per_thread},
#define PASS(family, names, text) {PASS_ROW, #family, names, "", text, 0, 0},
#include "hooks.def"
};

enum { ROWS = sizeof rows / sizeof *rows };

/* coverage_names prints a comma-separated list as code. */
static void coverage_names(const char *list)
{
	for (const char *end; *list; list = *end ? end + 2 : end) {
		end = list + strcspn(list, ",");
		printf("`%.*s`%s", (int)(end - list), list, *end ? ", " : "");
	}
}

/* coverage_hooked prints one line for a call and the variants that follow it. */
static unsigned coverage_hooked(unsigned i)
{
	const struct row *r = &rows[i];
	printf("| `%s`", r->name);
	for (i++; i < ROWS && rows[i].type == HOOK_ROW && !*rows[i].text; i++)
		printf(", `%s`", rows[i].name);
	printf(" | %s |\n", r->text);
	return i;
}

static void coverage_family(const struct row *f)
{
	bool any = false;
	printf("\n## %s\n", f->name);
	if (*f->text)
		printf("\n%s\n", f->text);
	for (unsigned i = 0; i < ROWS;) {
		if (rows[i].type != HOOK_ROW || strcmp(rows[i].family, f->family)) {
			i++;
			continue;
		}
		if (!any)
			printf("\n| Call | What is done |\n|---|---|\n");
		any = true;
		i = coverage_hooked(i);
	}
	any = false;
	for (unsigned i = 0; i < ROWS; i++) {
		if (rows[i].type != PASS_ROW || strcmp(rows[i].family, f->family))
			continue;
		printf("%s- ", any ? "" : "\nLeft alone:\n\n");
		any = true;
		coverage_names(rows[i].name);
		printf(": %s\n", rows[i].text);
	}
}

int main(void)
{
	unsigned hooks = 0;
	for (unsigned i = 0; i < ROWS; i++)
		hooks += rows[i].type == HOOK_ROW;
	printf("<!-- Written by `make -C shim coverage` from shim/hooks.def. Do not edit. -->\n"
	       "# What is counted\n\n"
	       "Every call of the CUDA driver that can take device memory, and what `libration.so` does about it. It hooks\n"
	       "%u symbols, whether a program is linked with the driver, finds them with `dlsym`, or asks `cuGetProcAddress`.\n"
	       "Names with `_ptsz` are the variants for the per-thread default stream, names without `_v2` those of old programs.\n\n"
	       "What a process has beyond all that is counted here is in the driver's own count for it. The difference is\n"
	       "charged as *driver overhead*, and counts against the limit. It is read when a program first waits for its device,\n"
	       "soon after something was made or loaded, and then at most once a second, beside an allocation or a\n"
	       "synchronisation.\n\n"
	       "## Where the driver's count can exceed the limit\n\n"
	       "No request is granted beyond it. What the driver counts can be more in these cases:\n\n"
	       "- What the driver takes by itself, mostly for code that is loaded with the first kernel that needs it, is charged\n"
	       "  when it is read and cannot be refused. At the limit that was up to 10 MiB beyond it with eight JAX processes.\n"
	       "- The first context on a machine is made and then measured; if it does not fit it is undone. All later ones are\n"
	       "  charged before they are made.\n"
	       "- A pool that seems to have room and has it only in pieces, or cannot use it before the device has come to a free, grows\n"
	       "  by the request. What does not fit is undone; where the device is still at work, the pool has it until the program next\n"
	       "  waits for the device, and uses it for nothing. A pool that has grown like that is trimmed before the next request for\n"
	       "  which the job has no room, and that request is charged in full where it then fits. It is not refused in advance where\n"
	       "  it may not: memory that was freed on the same stream serves most such requests, and no call tells.\n"
	       "- A graph that a stream is captured into with cuStreamBeginCaptureToGraph, or that has child graphs, takes what it takes "
	       "at\n"
	       "  its launch.\n"
	       "- What a killed process held is there for others as soon as the kernel has dropped its lock. The driver may still be\n"
	       "  taking it back meanwhile.\n",
	       hooks);
	for (unsigned i = 0; i < ROWS; i++)
		if (rows[i].type == FAMILY_ROW)
			coverage_family(&rows[i]);
	return 0;
}
