/* Runs the tables of internal/limit/testdata, which the Go tests run too:
 * the command line and the library must read a limit alike. */
#include <strings.h>

#include "check.h"

/* strcasecmp as in a Turkish locale, in which I is not i: the grammar must not depend
 * on the locale that a program has set. */
static inline int turkish_strcasecmp(const char *a, const char *b) { return strchr(a, 'I') || strchr(b, 'I') ? 1 : (strcasecmp)(a, b); }
#define strcasecmp turkish_strcasecmp

#include "../limit_parse.c"

/* unquote copies the text between two quotes, in which \xNN is a byte, and returns
 * what follows the closing quote and a blank; or NULL. */
static const char *unquote(const char *from, char *to)
{
	if (*from++ != '"')
		return NULL;
	for (; *from && *from != '"'; to++) {
		unsigned byte;
		if (*from != '\\') {
			*to = *from++;
		} else if (sscanf(from, "\\x%2x", &byte) == 1) {
			*to = (char)byte;
			from += 4;
		} else {
			return NULL;
		}
	}
	*to = 0;
	return from[0] == '"' && from[1] == ' ' ? from + 2 : NULL;
}

/* parse_as writes the result of parsing text, as the table has it. */
static void parse_as(const char *kind, const char *text, char *out, size_t size)
{
	struct memory_limit memory = {0};
	struct compute_limit compute = {0};
	uint32_t round = 0;
	unsigned device = 0;
	enum compute_policy policy = POLICY_SHARE;
	bool strict = false;
	const char *wrong = "no such kind";
	if (!strcmp(kind, "memory")) {
		wrong = parse_memory(text, &memory);
		if (memory.none)
			snprintf(out, size, "none");
		else if (memory.share)
			snprintf(out, size, "share %u", memory.share);
		else
			snprintf(out, size, "bytes %llu", (unsigned long long)memory.bytes);
	} else if (!strcmp(kind, "compute")) {
		wrong = parse_compute(text, &compute);
		snprintf(out, size, "percent %u", compute.percent);
		if (!compute.percent)
			snprintf(out, size, "none");
	} else if (!strcmp(kind, "device")) {
		wrong = parse_device(text, &device);
		snprintf(out, size, "device %u", device);
	} else if (!strcmp(kind, "round")) {
		wrong = parse_round(text, &round);
		snprintf(out, size, "microseconds %u", round);
	} else if (!strcmp(kind, "policy")) {
		static const char *const names[] = {"share", "cap", "neither"};
		wrong = parse_policy(text, &policy);
		snprintf(out, size, "%s", names[policy]);
	} else if (!strcmp(kind, "mode")) {
		wrong = parse_mode(text, &strict);
		snprintf(out, size, "%s", strict ? "strict" : "lenient");
	} else if (!strcmp(kind, "wait")) {
		wrong = parse_wait_alloc(text, &round);
		snprintf(out, size, "milliseconds %u", round);
		if (!round || round == RATION_WAIT_ALLOC_NONE)
			snprintf(out, size, round ? "none" : "unset");
	}
	if (wrong)
		snprintf(out, size, "error: %s", wrong);
}

/* run_table checks each line of a table: kind "text" result. */
static void run_table(const char *name)
{
	char path[4096], line[512], text[512], got[128];
	snprintf(path, sizeof path, "%s/../../internal/limit/testdata/%s", getenv("here"), name);
	FILE *table = fopen(path, "r");
	CHECK(table != NULL);
	while (table && fgets(line, sizeof line, table)) {
		line[strcspn(line, "\n")] = 0;
		if (!line[0] || line[0] == '#')
			continue;
		char *space = strchr(line, ' ');
		const char *want = space ? unquote(space + 1, text) : NULL;
		CHECK(want != NULL);
		if (!want)
			continue;
		*space = 0;
		parse_as(line, text, got, sizeof got);
		bool same = !strcmp(got, want);
		if (!same)
			fprintf(stderr, "%s %s: got %s, want %s\n", line, text, got, want);
		CHECK(same);
	}
	if (table)
		fclose(table);
}

int main(void)
{
	run_table("grammar.txt");
	CHECK(checks_passed > 100);
	unsigned before = checks_passed;
	run_table("compute.txt");
	CHECK(checks_passed > before + 40);
	return FINISH();
}
