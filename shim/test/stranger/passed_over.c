/* A thread that was passed over in its turn to look for the host's PID, and goes on while another
 * thread of its process has a turn, for another device: it does not take that turn for
 * its own. In a PID namespace, where the host's PID is not known. */
#include "park.h"

static CUresult retain(struct task *t) { return cuDevicePrimaryCtxRetain(&t->made, (CUdevice)t->bytes); }

static void inside(void)
{
	struct task a = {.run = retain, .bytes = 0}, b = {.run = retain, .bytes = 1};
	OK(cuInit(0));
	task_begin(&a, NULL);
	wait_parked();
	/* Another process waits for as long as it waits for one that does not move. */
	unsetenv("RATION_FAULT");
	EQ(AGAIN("other", NULL), 0);
	LOGGED("passing over the process in slot", 1);
	fakegpu_hold("cuDevicePrimaryCtxRetain", 1);
	task_begin(&b, NULL);
	task_settle(&b, "cuDevicePrimaryCtxRetain", 1);
	unpark();
	JOIN(&a);
	LOGGED("was passed over in its turn", 1);
	fakegpu_open("cuDevicePrimaryCtxRetain");
	JOIN(&b);
	LOGGED("was passed over in its turn", 1);
	OK(a.result);
	OK(b.result);
}

int main(int argc, char **argv)
{
	CUcontext c;
	if (argc > 1 && !strcmp(argv[1], "other"))
		return cuInit(0) || cuDevicePrimaryCtxRetain(&c, 0);
	in_pid_namespace(inside);
	return FINISH();
}
