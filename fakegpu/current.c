/* Each thread's stack of current contexts. */
#include "driver.h"

enum { CURRENT_MAX = 64 };

static _Thread_local struct {
	struct context *at[CURRENT_MAX];
	int depth;
} current;

struct context *current_top(void) { return current.depth > 0 ? current.at[current.depth - 1] : NULL; }
bool current_is_full(void) { return current.depth == CURRENT_MAX; }

CUresult current_push(struct context *c)
{
	if (current_is_full())
		return CUDA_ERROR_INVALID_CONTEXT;
	current.at[current.depth++] = c;
	return CUDA_SUCCESS;
}

CUresult current_pop(struct context **out)
{
	*out = current_top();
	if (*out == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	current.depth--;
	return CUDA_SUCCESS;
}

CUresult current_context(struct context **out)
{
	TRY(driver_ready());
	*out = current_top();
	if (*out == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!load_acquire(&(*out)->alive))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if ((*out)->base != NULL)
		*out = (*out)->base;
	return CUDA_SUCCESS;
}
