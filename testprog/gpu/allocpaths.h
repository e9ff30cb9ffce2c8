/* An allocation path: one family of driver calls that gives out device memory. allocpaths.c
 * takes every path through the same steps. */
#ifndef ALLOCPATHS_H
#define ALLOCPATHS_H

#include "driver.h"

enum {
	FIRST = 4,               /* pieces that are held first */
	PIECES = 8192,           /* the most at a time */
	GRAIN = 2 * 1024 * 1024, /* pieces are a multiple of this: the driver's own step */
};

extern CUdevice device;
extern uint64_t piece; /* bytes */

struct allocpath {
	const char *name;
	void (*begin)(void);     /* what it needs, and takes no memory */
	bool (*take)(void);      /* one piece more, used; false where it was refused for want of memory */
	uint64_t (*data)(void);  /* what the books should have */
	void (*give_back)(void); /* all of it */
	void (*end)(void);       /* what begin made */
	/* What is particular to it. */
	void (*before)(void); /* steps before anything is held */
	void (*hold)(void);   /* takes the first pieces, with steps of its own */
	void (*after)(void);  /* steps once they are held; nothing or all of it may be left */
	void (*play)(void);   /* all but the end is its own: nothing of the above but the name counts */
};

extern const struct allocpath linear, odd, pitch, managed, pool, vmm, array, graph, contexts, module;

/* HAD is for calls that may be refused memory, and says whether they were not. */
#define HAD(call, ...) allocpath_had(call(__VA_ARGS__), #call)
bool allocpath_had(CUresult, const char *call);

/* allocpath_refused fails where the latest refusal should not have been. */
__attribute__((noreturn)) void allocpath_refused(const char *what);

/* allocpath_hold takes the first pieces. None of them may be refused. */
void allocpath_hold(bool (*take)(void));

#endif
