#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "space.h"

static pthread_mutex_t module_lock = PTHREAD_MUTEX_INITIALIZER;      /* over lists of functions and variables */
static pthread_mutex_t module_list_lock = PTHREAD_MUTEX_INITIALIZER; /* over libraries' lists of modules; taken before the other */

char *file_read(const char *path)
{
	FILE *f = fopen(path, "re");
	char *data = NULL;
	long n;

	if (f == NULL)
		return NULL;
	if (fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && (data = calloc(1, (size_t)n + 8)) != NULL) {
		rewind(f);
		if (fread(data, 1, (size_t)n, f) != (size_t)n) {
			free(data);
			data = NULL;
		}
	}
	fclose(f);
	return data;
}

struct function *function_new(const char *name, struct function **list)
{
	struct function *f;

	pthread_mutex_lock(&module_lock);
	for (f = *list; f != NULL; f = f->next)
		if (strcmp(f->name, name) == 0)
			break;
	if (f == NULL && (f = handle_new(sizeof *f, HANDLE_FUNCTION, NULL)) != NULL) {
		f->name = strdup(name);
		if (f->name == NULL) {
			handle_drop(f);
			f = NULL;
		} else {
			work_duration(name, &f->ns, &f->ns_per_block);
			f->next = *list;
			*list = f;
		}
	}
	pthread_mutex_unlock(&module_lock);
	return f;
}

void functions_drop(struct function **list)
{
	struct function *next;
	for (struct function *f = *list; f != NULL; f = next) {
		next = f->next;
		free(f->name);
		handle_drop(f);
	}
	*list = NULL;
}

/* A module takes whole 2 MiB pages, as measured on the real driver. */
static uint64_t module_cost(const struct image *i) { return round_up(i->size + i->globals + 1, 2 * MIB); }

CUresult module_new(struct module **out, const void *data, struct library *library)
{
	struct context *c;
	struct image i;
	struct module *m;
	uint64_t bytes;

	TRY(current_context(&c));
	if (data == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (!image_read(data, &i))
		return CUDA_ERROR_INVALID_IMAGE;
	bytes = module_cost(&i);
	if (!machine_charge(c->device_index, KIND_MODULE, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	m = handle_new(sizeof *m, HANDLE_MODULE, c);
	if (m == NULL) {
		machine_return(c->device_index, KIND_MODULE, bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->image = i;
	m->charged = bytes;
	m->library = library;
	/* The caller may let go of the image once it is loaded. */
	if (i.is_text && library == NULL && (m->copy = strdup(i.text)) != NULL)
		m->image.text = m->copy;
	else if (i.is_text && library == NULL)
		m->image.is_text = false;
	*out = m;
	return CUDA_SUCCESS;
}

CUresult module_of_library(struct module **out, const void *data, struct library *library, struct module **list)
{
	struct context *c;
	struct module *m;
	CUresult r = CUDA_SUCCESS;

	TRY(current_context(&c));
	pthread_mutex_lock(&module_list_lock);
	for (m = *list; m != NULL && m->handle.context != c; m = m->next) {
	}
	if (m == NULL && (r = module_new(&m, data, library)) == CUDA_SUCCESS) {
		m->list = list;
		m->next = *list;
		*list = m;
	}
	pthread_mutex_unlock(&module_list_lock);
	if (r == CUDA_SUCCESS)
		*out = m;
	return r;
}

static void module_unlist(struct module *m)
{
	if (m->list == NULL)
		return;
	pthread_mutex_lock(&module_list_lock);
	for (struct module **at = m->list; *at != NULL; at = &(*at)->next)
		if (*at == m) {
			*at = m->next;
			break;
		}
	pthread_mutex_unlock(&module_list_lock);
}

void module_end(struct module *m)
{
	struct global *next;
	for (struct global *g = m->globals; g != NULL; g = next) {
		struct block b;
		next = g->next;
		space_remove(g->address, 1u << BLOCK_GLOBAL, &b);
		free(g);
	}
	functions_drop(&m->functions);
	machine_return(m->handle.context->device_index, KIND_MODULE, m->charged);
	module_unlist(m);
	free(m->copy);
	handle_drop(m);
}

CUresult module_function(struct module *m, const char *name, struct function **out)
{
	if (!image_has_kernel(&m->image, name))
		return CUDA_ERROR_NOT_FOUND;
	*out = function_new(name, &m->functions);
	if (*out == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*out)->module = m;
	return CUDA_SUCCESS;
}

/* A variable has an address from when it is first asked for. Its bytes are the
 * module's, so they are charged already. A binary's variables cannot be seen; each
 * is said to be one page long. Under the lock. */
static struct global *module_global_get(struct module *m, const char *name)
{
	struct block b = {.kind = BLOCK_GLOBAL, .context = m->handle.context, .owner = m};
	struct global *g;

	for (g = m->globals; g != NULL; g = g->next)
		if (strcmp(g->name, name) == 0)
			return g;
	b.size = m->image.is_text ? image_variable(&m->image, name, false) : 4096;
	b.device = m->handle.context->device_index;
	if (b.size == 0 || strlen(name) >= sizeof g->name || (g = calloc(1, sizeof *g)) == NULL)
		return NULL;
	if (!space_take(&b, false)) {
		free(g);
		return NULL;
	}
	strcpy(g->name, name);
	g->address = b.address;
	g->size = b.size;
	g->next = m->globals;
	m->globals = g;
	return g;
}

CUresult module_global(struct module *m, const char *name, CUdeviceptr *p, uint64_t *size)
{
	struct global *g;
	pthread_mutex_lock(&module_lock);
	g = module_global_get(m, name);
	if (g != NULL) {
		*p = g->address;
		*size = g->size;
	}
	pthread_mutex_unlock(&module_lock);
	return g == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
