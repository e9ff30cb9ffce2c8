/* Parses limits as users write them: the grammar of internal/limit, in C. */
#ifndef RATION_LIMIT_PARSE_H
#define RATION_LIMIT_PARSE_H

#include <stdbool.h>
#include <stdint.h>

/* Shares are in ten-thousandths of a percent: ONE_PERCENT is one percent, WHOLE the whole
 * device. */
#define ONE_PERCENT 10000u
#define WHOLE (100 * ONE_PERCENT)

/* A limit on memory: bytes, a share of the device, or explicitly no limit. */
struct memory_limit {
	bool set, none;
	uint64_t bytes;
	uint32_t share;
};

/* A limit on compute, in whole percent. set with percent 0 means explicitly no limit. */
struct compute_limit {
	bool set;
	bool exact; /* given for one device only; config.c sets this */
	uint8_t percent;
};

/* How HAMi-core's limit on compute is applied. */
enum compute_policy { POLICY_SHARE, POLICY_CAP, POLICY_NEITHER };

/* The accepted values, as text for error messages. */
extern const char memory_use[], compute_use[], device_use[], round_use[], policy_use[], mode_use[], priority_use[], wait_alloc_use[];

/* Each parses text into out, and returns NULL or a text that describes the mistake. */
const char *parse_memory(const char *text, struct memory_limit *out);
const char *parse_compute(const char *text, struct compute_limit *out);
const char *parse_hami_compute(const char *text, struct compute_limit *out); /* for HAMi-core's variable: more than 100 means no limit */
const char *parse_device(const char *text, unsigned *out);
const char *parse_round(const char *text, uint32_t *microseconds);
const char *parse_policy(const char *text, enum compute_policy *out);
const char *parse_mode(const char *text, bool *strict);
const char *parse_priority(const char *text, uint8_t *out);             /* RATION_PRIORITY_...; empty changes nothing */
const char *parse_hami_priority(const char *text, uint8_t *out);        /* for HAMi-core's variable: 0 is high, 1 low */
const char *parse_wait_alloc(const char *text, uint32_t *milliseconds); /* RATION_WAIT_ALLOC_NONE for none; empty changes nothing */

/* share_of returns a share of bytes, in bytes, rounded down. */
uint64_t share_of(uint32_t share, uint64_t bytes);

/* size_text formats a size for people into out, which has at least SIZE_TEXT bytes. It returns
 * out. */
#define SIZE_TEXT 24
const char *size_text(uint64_t bytes, char *out);

#endif
