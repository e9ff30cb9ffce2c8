/* ioctl, the call by which libcuda.so.1 reaches the kernel driver. All other uses of ioctl in the
 * program come here too, so it costs only two branches for them. */
#include <stdarg.h>

#include "attach.h"
#include "hooks.h"
#include "hostpid.h"
#include "interpose.h"
#include "compute/slice.h"

/* The C library's own declaration differs between C libraries in the type of request. */
int ioctl_entry(int fd, unsigned long request, ...) __asm__("ioctl");

RATION_EXPORT int ioctl_entry(int fd, unsigned long request, ...)
{
	va_list args;
	va_start(args, request);
	void *arg = va_arg(args, void *);
	va_end(args);
	ioctl_function next = (ioctl_function)interpose_ioctl();
	uint64_t turn = __atomic_load_n(attach_turn(), __ATOMIC_RELAXED);
	if (unlikely(turn != 0))
		hostpid_beat(turn);
	return slice_control(next, fd, request, arg);
}
