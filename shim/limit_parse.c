#include "limit_parse.h"

#include <stdio.h>
#include <string.h>

#include "region/abi.h"

#define SIZE_USE "bytes or a number with k, m, g or t, like 10g, 1024m or 1.5g"

const char memory_use[] = SIZE_USE "; or a percentage from 1 to 100, like 25%";
const char compute_use[] = "a whole percentage from 1 to 100, like 30 or 30%; or 0 for no limit";
const char round_use[] = "a time from 1ms to 200ms, like 10ms; or microseconds, like 10000";
const char policy_use[] = "default for a share, force for a cap, or disable for neither";
const char mode_use[] = "strict, or leave it out";
const char priority_use[] = "high, normal or low";
const char wait_alloc_use[] = "a time from 1ms to 24h such as 500ms, 30s or 5m, or none";
const char device_use[] = "a device from 0 to 15 at the end of the name";

static const char parse_empty[] = "empty";
static const char parse_not_size[] = "not a size";
static const char parse_overflow[] = "a size too large to count in 64 bits";
static const char parse_not_percent[] = "not a percentage in range";

static size_t parse_digits(const char *s)
{
	size_t n = 0;
	while (s[n] >= '0' && s[n] <= '9')
		n++;
	return n;
}

struct number {
	const char *whole, *fraction, *rest;
	size_t whole_len, fraction_len;
};

/* parse_number splits text after its leading decimal number. A point must have a digit on both
 * sides. */
static bool parse_number(const char *text, struct number *n)
{
	memset(n, 0, sizeof *n);
	n->whole = text;
	n->whole_len = parse_digits(text);
	n->rest = text + n->whole_len;
	if (!n->whole_len)
		return false;
	if (*n->rest == '.') {
		n->fraction = n->rest + 1;
		n->fraction_len = parse_digits(n->fraction);
		n->rest = n->fraction + n->fraction_len;
		if (!n->fraction_len)
			return false;
	}
	return true;
}

/* parse_is_word compares text with a word of lower-case letters, ignoring the case of ASCII
 * letters. It does not use the program's locale: in a Turkish one, I is not i. */
static bool parse_is_word(const char *text, const char *word)
{
	while (*word && (*text | 0x20) == *word)
		text++, word++;
	return !*text && !*word;
}

static bool parse_is_none(const char *s) { return parse_is_word(s, "none") || parse_is_word(s, "unlimited"); }

/* parse_unit returns how many bytes a unit stands for, or 0 if there is no such unit. */
static uint64_t parse_unit(const char *unit)
{
	static const char letters[] = "kmgt";
	static const char *const endings[] = {"", "b", "B", "i", "I", "ib", "iB", "Ib", "IB"};
	if (!*unit)
		return 1;
	const char *power = strchr(letters, *unit | 0x20);
	if (!power || !*power)
		return 0;
	for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
		if (!strcmp(unit + 1, endings[i]))
			return UINT64_C(1024) << (10 * (power - letters));
	return 0;
}

static int parse_hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

/* parse_hex_size parses a size after 0x, by HAMi-core's rules. */
static const char *parse_hex_size(const char *text, uint64_t *out)
{
	const char *unit = text;
	uint64_t bytes = 0;
	bool over = false;
	for (; parse_hex_digit(*unit) >= 0; unit++) {
		over |= bytes >> 60 != 0;
		bytes = bytes << 4 | (unsigned)parse_hex_digit(*unit);
	}
	uint64_t scale = unit > text ? parse_unit(unit) : 0;
	if (!scale)
		return parse_not_size;
	over |= __builtin_mul_overflow(bytes, scale, out);
	return over ? parse_overflow : NULL;
}

static const char *parse_size(const char *text, uint64_t *out)
{
	struct number n;
	if (!*text)
		return parse_empty;
	if (text[0] == '0' && (text[1] | 0x20) == 'x' && text[2])
		return parse_hex_size(text + 2, out);
	uint64_t scale = parse_number(text, &n) ? parse_unit(n.rest) : 0, bytes = 0, part = 0;
	if (!scale || (n.fraction && scale == 1))
		return parse_not_size;
	for (size_t i = 0; i < n.whole_len; i++)
		if (__builtin_mul_overflow(bytes, 10, &bytes) || __builtin_add_overflow(bytes, (uint64_t)(n.whole[i] - '0'), &bytes))
			return parse_overflow;
	if (__builtin_mul_overflow(bytes, scale, &bytes))
		return parse_overflow;
	/* From the last digit to the first, so that the result is exact and never exceeds scale
	 * * 10. */
	bool any = false;
	for (size_t i = n.fraction_len; i-- > 0;) {
		part = ((uint64_t)(n.fraction[i] - '0') * scale + part) / 10;
		any |= n.fraction[i] != '0';
	}
	*out = bytes + part;
	/* Zero stands for "no limit": a tiny limit must not become none. */
	return *out == 0 && any ? parse_not_size : NULL;
}

static const char *parse_percent(const char *text, uint32_t *out)
{
	enum { PLACES = 4 };
	struct number n;
	uint64_t value = 0;
	if (!*text)
		return parse_empty;
	if (!parse_number(text, &n) || (*n.rest && strcmp(n.rest, "%")) || n.fraction_len > PLACES)
		return parse_not_percent;
	for (size_t i = 0; i < n.whole_len; i++) {
		value = value * 10 + (uint64_t)(n.whole[i] - '0');
		if (value > 100)
			return parse_not_percent;
	}
	for (size_t i = 0; i < PLACES; i++)
		value = value * 10 + (i < n.fraction_len ? (uint64_t)(n.fraction[i] - '0') : 0);
	if (value > WHOLE)
		return parse_not_percent;
	*out = (uint32_t)value;
	return NULL;
}

const char *parse_memory(const char *text, struct memory_limit *out)
{
	struct memory_limit l = {.set = true};
	const char *wrong = NULL;
	size_t len = strlen(text);
	if (parse_is_none(text)) {
		l.none = true;
	} else if (len && text[len - 1] == '%') {
		if (parse_percent(text, &l.share) || l.share < ONE_PERCENT)
			wrong = parse_not_percent;
	} else {
		wrong = parse_size(text, &l.bytes);
		l.none = l.bytes == 0;
	}
	if (!wrong)
		*out = l;
	return wrong;
}

const char *parse_compute(const char *text, struct compute_limit *out)
{
	uint32_t p = 0;
	const char *wrong = parse_is_none(text) ? NULL : parse_percent(text, &p);
	if (!wrong && p % ONE_PERCENT)
		wrong = parse_not_percent;
	if (!wrong)
		*out = (struct compute_limit){.set = true, .percent = (uint8_t)(p / ONE_PERCENT)};
	return wrong;
}

const char *parse_hami_compute(const char *text, struct compute_limit *out)
{
	size_t len = parse_digits(text);
	uint32_t p;
	bool whole = len && (!text[len] || !strcmp(text + len, "%"));
	if (whole && parse_percent(text, &p)) {
		*out = (struct compute_limit){.set = true};
		return NULL;
	}
	return parse_compute(text, out);
}

const char *parse_device(const char *text, unsigned *out)
{
	size_t len = parse_digits(text);
	unsigned n = 0;
	for (size_t i = 0; i < len && i < 3; i++)
		n = n * 10 + (unsigned)(text[i] - '0');
	if (!len || len > 2 || text[len] || (len > 1 && *text == '0') || n >= RATION_DEVICES)
		return "not a device index";
	*out = n;
	return NULL;
}

const char *parse_round(const char *text, uint32_t *microseconds)
{
	size_t len = parse_digits(text);
	uint64_t n = 0;
	if (!*text)
		return parse_empty;
	bool good = len && (!text[len] || !strcmp(text + len, "us") || !strcmp(text + len, "ms"));
	for (size_t i = 0; i < len && n <= RATION_MAX_ROUND; i++)
		n = n * 10 + (uint64_t)(text[i] - '0');
	if (text[len] == 'm')
		n *= 1000;
	if (!good || n < RATION_MIN_ROUND || n > RATION_MAX_ROUND)
		return "not a time in range";
	*microseconds = (uint32_t)n;
	return NULL;
}

const char *parse_policy(const char *text, enum compute_policy *out)
{
	if (!*text || parse_is_word(text, "default"))
		*out = POLICY_SHARE;
	else if (parse_is_word(text, "force"))
		*out = POLICY_CAP;
	else if (parse_is_word(text, "disable"))
		*out = POLICY_NEITHER;
	else
		return "not a policy";
	return NULL;
}

const char *parse_mode(const char *text, bool *strict)
{
	*strict = !strcmp(text, "strict");
	return *text && !*strict ? "not a mode" : NULL;
}

const char *parse_priority(const char *text, uint8_t *out)
{
	static const struct {
		const char *name;
		uint8_t priority;
	} names[] = {{"high", RATION_PRIORITY_HIGH}, {"normal", RATION_PRIORITY_NORMAL}, {"low", RATION_PRIORITY_LOW}};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (parse_is_word(text, names[i].name)) {
			*out = names[i].priority;
			return NULL;
		}
	return *text ? "not a priority" : NULL;
}

const char *parse_wait_alloc(const char *text, uint32_t *milliseconds)
{
	static const struct {
		const char *name;
		uint64_t milliseconds;
	} units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
	size_t len = parse_digits(text);
	uint64_t n = 0;
	if (!*text)
		return NULL;
	if (parse_is_word(text, "none")) {
		*milliseconds = RATION_WAIT_ALLOC_NONE;
		return NULL;
	}
	for (size_t i = 0; i < len && n <= RATION_MAX_WAIT_ALLOC; i++)
		n = n * 10 + (uint64_t)(text[i] - '0');
	for (size_t i = 0; i < sizeof units / sizeof *units; i++)
		if (len && !strcmp(text + len, units[i].name) && n && n <= RATION_MAX_WAIT_ALLOC / units[i].milliseconds) {
			*milliseconds = (uint32_t)(n * units[i].milliseconds);
			return NULL;
		}
	return "not a time in range";
}

const char *parse_hami_priority(const char *text, uint8_t *out)
{
	if (strcmp(text, "0") && strcmp(text, "1"))
		return *text ? "it is neither 0 (high) nor 1 (low)" : NULL;
	*out = *text == '0' ? RATION_PRIORITY_HIGH : RATION_PRIORITY_LOW;
	return NULL;
}

uint64_t share_of(uint32_t share, uint64_t bytes) { return (uint64_t)((unsigned __int128)bytes * share / WHOLE); }

const char *size_text(uint64_t bytes, char *out)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	unsigned u = 0;
	uint64_t scale = 1;
	while (u < 4 && bytes >= scale * 1024)
		scale *= 1024, u++;
	/* n is in hundredths, rounded to the nearest. */
	uint64_t n = bytes / scale * 100 + (bytes % scale * 100 + scale / 2) / scale;
	if (n % 100 == 0)
		snprintf(out, SIZE_TEXT, "%llu %s", (unsigned long long)(n / 100), units[u]);
	else
		snprintf(out, SIZE_TEXT, "%llu.%02u %s", (unsigned long long)(n / 100), (unsigned)(n % 100), units[u]);
	return out;
}
