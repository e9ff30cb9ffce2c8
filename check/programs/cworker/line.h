/* Words of an order, and the line that answers it. */
#ifndef RATION_TEST_LINE_H
#define RATION_TEST_LINE_H

#include <stdbool.h>
#include <stdint.h>

/* rest is what is left of the order; usage is set if a word was missing or wrong. */
extern char *rest;
extern bool usage;

/* Each takes the next word of the order. */
const char *word(void);
uint64_t number(void);
unsigned device(void);

/* Each prints the answer to an order: ok with fields; an error; ok or an error. */
__attribute__((format(printf, 1, 2))) void ok(const char *format, ...);
void failed(int err);
void done(int err);

#endif
