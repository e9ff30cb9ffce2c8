/* One order in, one answer out. */
#ifndef RATION_TEST_LINE_H
#define RATION_TEST_LINE_H

#include <stdbool.h>
#include <stdint.h>

/* The words of the order that are left, and whether one was missing or wrong. */
extern char *rest;
extern bool usage;

/* Each takes the next word. */
const char *word(void);
uint64_t number(void);
unsigned device(void);

/* Each is the answer to an order: with fields; what went wrong; ok or that. */
__attribute__((format(printf, 1, 2))) void ok(const char *format, ...);
void failed(int err);
void done(int err);

#endif
