/* Modules and libraries: code on the device, and what it costs there. */
#ifndef FAKEGPU_MODULE_H
#define FAKEGPU_MODULE_H

#include <pthread.h>

#include "driver.h"
#include "image.h"

struct function {
	struct handle handle;
	char *name;
	struct module *module;     /* of a CUfunction */
	struct library *library;   /* of a CUkernel */
	uint64_t ns, ns_per_block; /* its duration */
	struct function *next;
};

struct global {
	char name[256];
	CUdeviceptr address;
	uint64_t size;
	struct global *next;
};

struct module {
	struct handle handle;
	struct image image;
	char *copy; /* a copy of a text image; NULL if the text belongs to a library */
	uint64_t charged;
	struct function *functions;
	struct global *globals;
	struct library *library; /* that loaded it, or NULL */
	struct module **list;    /* the library's list of its modules, linked by next; module.c has its lock */
	struct module *next;
};

CUresult module_new(struct module **out, const void *image, struct library *library);
/* The module of a library in the current context, from its list of modules, loaded on first use. */
CUresult module_of_library(struct module **out, const void *image, struct library *library, struct module **list);
CUresult module_function(struct module *m, const char *name, struct function **out);
CUresult module_global(struct module *m, const char *name, CUdeviceptr *p, uint64_t *size);

/* Makes a named function handle and puts it in a list. */
struct function *function_new(const char *name, struct function **list);
void functions_drop(struct function **list);

/* library.c: the module of a library in the current context, loaded on first use. */
CUresult library_module(struct library *l, struct module **out);

/* Returns the content of a file with a terminating zero byte; NULL if it cannot be read. */
char *file_read(const char *path);

/* Sets *out to the module of a function or kernel that is launched. For a kernel, its library is
 * loaded first. */
CUresult launchable(CUfunction f, struct module **out);

#endif
