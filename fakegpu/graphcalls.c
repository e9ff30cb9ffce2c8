/* Kernels in graphs, and launching graphs. A launch puts the total time of all kernel nodes into
 * its stream, as one unit of work. */
#include "capture.h"
#include "graph.h"
#include "module.h"

static CUresult graph_add_kernel_params(CUgraphNode *out, CUgraph g, struct graph_after after, const CUDA_KERNEL_NODE_PARAMS *p,
					CUkernel kernel)
{
	CUfunction f = p == NULL ? NULL : p->func != NULL ? p->func : kernel;
	uint64_t blocks = p == NULL ? 0 : (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ;
	struct module *m;

	TRY(driver_ready());
	if (f == NULL || blocks == 0 || p->blockDimX * p->blockDimY * p->blockDimZ == 0)
		return CUDA_ERROR_INVALID_VALUE;
	TRY(launchable(f, &m));
	return graph_add_kernel(out, g, after, f->ns + f->ns_per_block * blocks);
}

API cuGraphAddKernelNode(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
	ENTRY(cuGraphAddKernelNode, graph_add_kernel_params(out, g, (struct graph_after){after, count}, params, NULL));
}

API cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
	ENTRY(cuGraphAddKernelNode, graph_add_kernel_params(out, g, (struct graph_after){after, count}, params == NULL ? NULL : &params->v1,
							    params == NULL ? NULL : params->kern));
}

static CUresult graph_launch(CUgraphExec handle, CUstream s)
{
	struct context *c;
	uint64_t ns = 0;

	TRY(driver_ready());
	TRY(stream_check(s));
	if (captures()) {
		bool taken;
		TRY(capture_graph(s, handle, &taken));
		if (taken)
			return CUDA_SUCCESS;
	}
	stream_enqueue(s);
	TRY(graph_hold(handle, &ns));
	if (work_timed && current_context(&c) == CUDA_SUCCESS)
		stream_submit(c, s, ns);
	return CUDA_SUCCESS;
}

API cuGraphLaunch(CUgraphExec e, CUstream s) { ENTRY(cuGraphLaunch, graph_launch(e, s)); }
API cuGraphLaunch_ptsz(CUgraphExec e, CUstream s) { ENTRY(cuGraphLaunch, graph_launch(e, per_thread(s))); }

static CUresult graph_upload(CUgraphExec e, CUstream s)
{
	TRY(driver_ready());
	TRY(stream_check(s));
	return handle_want(e, HANDLE_EXEC, "cuGraphUpload") == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuGraphUpload(CUgraphExec e, CUstream s) { ENTRY(cuGraphUpload, graph_upload(e, s)); }
API cuGraphUpload_ptsz(CUgraphExec e, CUstream s) { ENTRY(cuGraphUpload, graph_upload(e, per_thread(s))); }
