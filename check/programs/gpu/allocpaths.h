/* An allocation path: one family of driver calls that gives out device memory. allocpaths.c
 * takes every path through the same steps. */
#ifndef ALLOCPATHS_H
#define ALLOCPATHS_H

#include "driver.h"

enum {
	FIRST = 4,               /* pieces at the step held */
	PIECES = 8192,           /* the most pieces at a time */
	GRAIN = 2 * 1024 * 1024, /* bytes: the size of a piece is a multiple, as the driver's own blocks are */
};

extern CUdevice device;
extern uint64_t piece; /* size in bytes */

struct allocpath {
	const char *name;
	void (*begin)(void);     /* makes what the path needs, without allocating data */
	bool (*take)(void);      /* allocates and writes one piece; false if out of memory */
	uint64_t (*data)(void);  /* bytes that ration should count as data now */
	void (*give_back)(void); /* frees all pieces */
	void (*end)(void);       /* destroys what begin made */
	/* Optional, for steps of the path's own. */
	void (*before)(void); /* before held */
	void (*hold)(void);   /* takes the first pieces */
	void (*after)(void);  /* after held; may free all pieces or none */
	void (*play)(void);   /* replaces all of the above */
};

extern const struct allocpath linear, odd, pitch, managed, pool, vmm, array, graph, contexts, module;

/* HAD makes a call that may be refused for lack of memory. It is false if it was. */
#define HAD(call, ...) allocpath_had(call(__VA_ARGS__), #call)
bool allocpath_had(CUresult, const char *call);

/* allocpath_refused fails the program because of the latest refusal. */
__attribute__((noreturn)) void allocpath_refused(const char *what);

/* allocpath_hold takes the first pieces, none of which may be refused. */
void allocpath_hold(bool (*take)(void));

#endif
