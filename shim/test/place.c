/* The list of devices that the driver reads, for each value of the program's variable. */
#include "check.h"

#include "../place.c"

/* place_translate does not need them. */
void log_line(enum log_level level, const char *format, ...) { (void)level, (void)format; }
bool userjob_ruled(void) { return false; }

#define FIRST "GPU-01234567-89ab-cdef-0011-223344556677"
#define SECOND "GPU-01234567-89ab-cdef-ffee-ddccbbaa9988"

static void translates(const char *list, const char *want, const char *ends)
{
	char out[PLACE_LIST];
	struct place p = {.some = false};
	struct ration_device_limits hidden = {.hidden = 1, .uuid = {7, 7}}, unknown = {.hidden = 0};
	struct ration_device_limits first = {.uuid = {0x0123456789abcdef, 0x0011223344556677}};
	struct ration_device_limits second = {.uuid = {0x0123456789abcdef, 0xffeeddccbbaa9988}};
	place_add(&p, 0, &hidden);
	place_add(&p, 1, &first);
	place_add(&p, 2, &unknown);
	place_add(&p, 3, &second);
	const char *end = place_translate(&p, list, out);
	if (strcmp(out, want))
		printf("%s: %s, not %s\n", list ? list : "unset", out, want);
	CHECK(!strcmp(out, want));
	CHECK(ends ? end && !strcmp(end, ends) : !end);
}

static unsigned fuzz_state = 1;

static unsigned fuzz_next(unsigned below)
{
	fuzz_state ^= fuzz_state << 13;
	fuzz_state ^= fuzz_state >> 17;
	fuzz_state ^= fuzz_state << 5;
	return fuzz_state % below;
}

/* fuzz_value returns a value of pieces that mean something, now and then cut or with a byte
 * changed, in memory of exactly its size. */
static char *fuzz_value(void)
{
	static const char *const pieces[] = {
		"0",
		"1",
		"2",
		"9",
		",",
		",",
		",",
		" ",
		"-1",
		"GPU-",
		"GPU-0",
		FIRST,
		SECOND,
		"MIG",
		"4294967296",
		"gpu-0",
		"00",
		"\t",
		"GPU-01234567-89ab-cdef-f",
	};
	char text[4096] = "";
	for (unsigned n = fuzz_next(64); n; n--)
		strcat(text, pieces[fuzz_next(sizeof pieces / sizeof *pieces)]);
	size_t len = strlen(text);
	if (len && !fuzz_next(3))
		text[fuzz_next((unsigned)len)] = (char)(1 + fuzz_next(255));
	if (len && !fuzz_next(3))
		text[fuzz_next((unsigned)len)] = 0;
	return strdup(text);
}

/* fuzz_shows checks that out names visible devices only, or none. */
static bool fuzz_shows(const struct place *p, const char *out)
{
	if (!strcmp(out, "-1"))
		return true;
	for (unsigned n = 0; n <= RATION_DEVICES; n++) {
		bool one = false;
		for (unsigned i = 0; i < p->count; i++) {
			char text[PLACE_UUID];
			place_uuid_text(p->visible[i].uuid, text);
			one |= !strncmp(out, text, PLACE_UUID - 1);
		}
		if (!one)
			return false;
		out += PLACE_UUID - 1;
		if (!*out)
			return true;
		if (*out++ != ',')
			return false;
	}
	return false;
}

static void fuzz(void)
{
	struct {
		char out[PLACE_LIST], after[64];
	} list, again;
	struct place p = {.some = true,
			  .count = 2,
			  .visible = {{.uuid = {0x0123456789abcdef, 0x0011223344556677}},
				      {.index = 1, .uuid = {0x0123456789abcdef, 0xffeeddccbbaa9988}}}};
	for (int i = 0; i < 200000; i++) {
		char *value = fuzz_value();
		memset(&list, 'x', sizeof list);
		const char *end = place_translate(&p, value, list.out);
		bool good = memchr(list.out, 0, sizeof list.out) && list.after[0] == 'x' && fuzz_shows(&p, list.out) &&
			    (!end || (end >= value && end <= value + strlen(value)));
		/* The driver reads the result as it stands: no number in it is counted again. */
		if (good && strcmp(list.out, "-1"))
			good = !place_translate(&p, list.out, again.out) && !strcmp(list.out, again.out);
		if (!good)
			printf("\"%s\": %.80s\n", value, list.out);
		CHECK(good);
		free(value);
		if (!good)
			break;
	}
}

int main(void)
{
	char out[PLACE_LIST], many[4096] = "0";
	struct place none = {.some = true};
	translates(NULL, FIRST "," SECOND, NULL);
	translates("0", FIRST, NULL);
	translates("1", SECOND, NULL);
	translates(" 1 , 0", SECOND "," FIRST, NULL);
	translates("0,0", FIRST "," FIRST, NULL); /* the driver refuses it */
	translates("2", "-1", "2");
	translates("4294967296", "-1", "4294967296");
	translates("0,2,1", FIRST, "2,1");
	translates("", "-1", "");
	translates("-1", "-1", "-1");
	translates("0,-1,1", FIRST, "-1,1");
	translates("0,", FIRST, "");
	translates("0x1", "-1", "0x1");
	translates(SECOND, SECOND, NULL);
	translates("GPU-01234567-89AB-cdef-f", SECOND, NULL);
	translates("GPU-01234567", "-1", "GPU-01234567"); /* both */
	translates("GPU-", "-1", "GPU-");
	translates(SECOND "0", "-1", SECOND "0");
	translates("GPU-00000000-0000-0007-0000-000000000007", "-1", "GPU-00000000-0000-0007-0000-000000000007");
	translates("MIG-01234567-89ab-cdef-0011-223344556677", "-1", "MIG-01234567-89ab-cdef-0011-223344556677");
	CHECK(!place_translate(&none, NULL, out) && !strcmp(out, "-1"));
	for (int i = 0; i < 1000; i++)
		strcat(many, ",0");
	struct place one = {.some = true, .count = 1, .visible = {{.uuid = {1, 1}}}};
	CHECK(!place_translate(&one, many, out) && strlen(out) < sizeof out);
	fuzz();
	return FINISH();
}
