/* Launches: nothing is computed, but they are counted, their handles are checked, and
 * where time is on they take theirs. */
#include "capture.h"
#include "fakegpu.h"
#include "knobs.h"
#include "module.h"

static unsigned long launch_launches;

EXPORT unsigned long fakegpu_launches(void) { return load_relaxed(&launch_launches); }

static CUresult launch(CUfunction f, CUstream s, unsigned blocks, unsigned threads)
{
	struct context *c;
	struct module *m;
	TRY(current_context(&c));
	TRY(stream_check(s));
	if (blocks == 0 || threads == 0 || threads > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(launchable(f, &m));
	if (image_allocates(&m->image))
		TRY(context_heap(c));
	if (captures()) {
		bool taken;
		TRY(capture_kernel(s, f->ns + f->ns_per_block * blocks, &taken));
		if (taken)
			return CUDA_SUCCESS;
	}
	stream_enqueue(s);
	if (__builtin_expect(work_timed, 0))
		stream_submit(c, s, f->ns + f->ns_per_block * blocks);
	add_relaxed(&launch_launches, 1);
	return CUDA_SUCCESS;
}

#define DIMENSIONS unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz

/* Zero in any direction makes the product zero. */
#define LAUNCH(entry, stream) ENTRY(entry, launch(f, stream, (gx) * (gy) * (gz), (bx) * (by) * (bz)))

API cuLaunchKernel(CUfunction f, DIMENSIONS, unsigned shared, CUstream s, void **params, void **extra)
{
	(void)shared, (void)params, (void)extra;
	LAUNCH(cuLaunchKernel, s);
}

API cuLaunchKernel_ptsz(CUfunction f, DIMENSIONS, unsigned shared, CUstream s, void **params, void **extra)
{
	(void)shared, (void)params, (void)extra;
	LAUNCH(cuLaunchKernel, per_thread(s));
}

API cuLaunchCooperativeKernel(CUfunction f, DIMENSIONS, unsigned shared, CUstream s, void **params)
{
	(void)shared, (void)params;
	LAUNCH(cuLaunchCooperativeKernel, s);
}

API cuLaunchCooperativeKernel_ptsz(CUfunction f, DIMENSIONS, unsigned shared, CUstream s, void **params)
{
	(void)shared, (void)params;
	LAUNCH(cuLaunchCooperativeKernel, per_thread(s));
}

static CUresult launch_ex(const CUlaunchConfig *l, CUfunction f, bool own_stream)
{
	if (l == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	return launch(f, own_stream ? per_thread(l->hStream) : l->hStream, l->gridDimX * l->gridDimY * l->gridDimZ,
		      l->blockDimX * l->blockDimY * l->blockDimZ);
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	(void)params, (void)extra;
	ENTRY(cuLaunchKernelEx, launch_ex(config, f, false));
}

API cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	(void)params, (void)extra;
	ENTRY(cuLaunchKernelEx, launch_ex(config, f, true));
}

typedef void (*host_function)(void *);

/* Runs in the calling thread, which waits for all that comes before it in the stream. Where host functions take time
 * (FAKEGPU_HOST_FUNCTION) nothing waits: it runs at once, and its time comes in the order of the stream. */
static CUresult launch_host(CUstream s, host_function f, void *arg)
{
	struct context *c;
	TRY(current_context(&c));
	TRY(stream_check(s));
	if (f == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (captures()) {
		bool taken;
		TRY(capture_other(s, &taken));
		if (taken)
			return CUDA_SUCCESS; /* and does not run when the graph does */
	}
	if (work_timed && knobs()->host_ns > 0)
		stream_submit_beside(s, knobs()->host_ns);
	else
		stream_finish(c, s);
	f(arg);
	return CUDA_SUCCESS;
}

API cuLaunchHostFunc(CUstream s, host_function f, void *arg) { ENTRY(cuLaunchHostFunc, launch_host(s, f, arg)); }
API cuLaunchHostFunc_ptsz(CUstream s, host_function f, void *arg) { ENTRY(cuLaunchHostFunc, launch_host(per_thread(s), f, arg)); }

typedef void (*stream_callback)(CUstream, CUresult, void *);

struct launch_callback {
	CUstream stream;
	stream_callback f;
	void *arg;
};

static void launch_call_back(void *arg)
{
	const struct launch_callback *l = arg;
	l->f(l->stream, CUDA_SUCCESS, l->arg);
}

static CUresult launch_callback(CUstream s, stream_callback f, void *arg)
{
	struct launch_callback l = {s, f, arg};
	return launch_host(s, f == NULL ? NULL : launch_call_back, &l);
}

API cuStreamAddCallback(CUstream s, stream_callback f, void *arg, unsigned flags)
{
	(void)flags;
	ENTRY(cuStreamAddCallback, launch_callback(s, f, arg));
}

API cuStreamAddCallback_ptsz(CUstream s, stream_callback f, void *arg, unsigned flags)
{
	(void)flags;
	ENTRY(cuStreamAddCallback, launch_callback(per_thread(s), f, arg));
}
