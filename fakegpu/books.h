/* The books of a device's engine, as of now: opened by each process that submits work, waits for it
 * or asks what was done. */
#ifndef FAKEGPU_BOOKS_H
#define FAKEGPU_BOOKS_H

#include "machine.h"

/* Contexts of dead processes leave the round when a process looks for them, which costs
 * system calls: now and then, at once those that have work, or at once all. */
enum books_look { BOOKS_NOW_AND_THEN, BOOKS_WITH_WORK, BOOKS_ALL };

/* Opens the books of a device (engine_open), buries the dead and advances the engine.
 * To be closed with books_close. */
struct engine_books *books_open(unsigned device, enum books_look look);
void books_close(unsigned device, struct engine_books *b);

#endif
