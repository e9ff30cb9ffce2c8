/* The books (accounts) of a device's engine, up to date. A process opens them when it submits work,
 * waits for it, or asks how much was done. */
#ifndef FAKEGPU_BOOKS_H
#define FAKEGPU_BOOKS_H

#include "machine.h"

/* When to look for contexts of dead processes and remove them, which costs system calls: now and
 * then; at once, for those that have work; or at once, for all. */
enum books_look { BOOKS_NOW_AND_THEN, BOOKS_WITH_WORK, BOOKS_ALL };

/* Opens the books of a device (engine_open), removes contexts of dead processes and advances the
 * engine. Close them with books_close. */
struct engine_books *books_open(unsigned device, enum books_look look);
void books_close(unsigned device, struct engine_books *b);

#endif
