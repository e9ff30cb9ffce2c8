/* What people write in limits: internal/limit's grammar, in C. */
#ifndef RATION_LIMIT_PARSE_H
#define RATION_LIMIT_PARSE_H

#include <stdbool.h>
#include <stdint.h>

/* A percentage in ten-thousandths of a percent. */
#define ONE_PERCENT 10000u
#define WHOLE (100 * ONE_PERCENT)

/* A limit on memory: bytes, a share of the device, or the decision to have none. */
struct memory_limit {
	bool set, none;
	uint64_t bytes;
	uint32_t share;
};

/* A limit on compute, in whole percent; 0 with set is the decision to have none. */
struct compute_limit {
	bool set;
	bool exact; /* given for one device; the reader of the settings says so */
	uint8_t percent;
};

/* What HAMi-core's limit on compute is. */
enum compute_policy { POLICY_SHARE, POLICY_CAP, POLICY_NEITHER };

/* What is accepted, for error messages. */
extern const char memory_use[], compute_use[], device_use[], round_use[], policy_use[], mode_use[];

/* Each returns NULL, or what is wrong with the text. */
const char *parse_memory(const char *text, struct memory_limit *out);
const char *parse_compute(const char *text, struct compute_limit *out);
const char *parse_hami_compute(const char *text, struct compute_limit *out); /* HAMi-core's, of which more than 100 is none */
const char *parse_device(const char *text, unsigned *out);
const char *parse_round(const char *text, uint32_t *microseconds);
const char *parse_policy(const char *text, enum compute_policy *out);
const char *parse_mode(const char *text, bool *strict);

/* share_of is a share of so many bytes, rounded down. */
uint64_t share_of(uint32_t share, uint64_t bytes);

/* size_text renders a size for people, into at least SIZE_TEXT bytes. */
#define SIZE_TEXT 24
const char *size_text(uint64_t bytes, char *out);

#endif
