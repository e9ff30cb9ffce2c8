/* The call by which libcuda sets a context's time slice, and the kernel module that
 * answers it.
 *
 * For each context libcuda makes one control call, an ioctl on the driver's control
 * device, that sets the slice of the context's group of channels (the groups for copies make none). It
 * goes through the dynamic symbol `ioctl`, so that a preloaded library sees it and may change
 * it. What stands for the kernel module is this library's own `ioctl`, which
 * dlsym finds in libcuda.so.1 (where a real one leads on to libc's). The control device is a plain file:
 * a call that went to libc's ioctl comes back with an error, and is answered here, as it
 * then stands.
 */
#ifndef FAKEGPU_CONTROL_H
#define FAKEGPU_CONTROL_H

#include <stdint.h>

struct context;

/* As the open kernel module has it. */
struct control_args {
	uint32_t client, object; /* they name the group of channels */
	uint32_t command;
	uint32_t flags;
	uint64_t params; /* address of what the command takes */
	uint32_t size;   /* of that, in bytes */
	uint32_t status; /* 0, or a CONTROL_... error */
};

#define CONTROL_REQUEST _IOWR('F', 0x2a, struct control_args)

enum { CONTROL_SET_SLICE = 0xa06c0103, CONTROL_GET_SLICE = 0xa06c0104 }; /* a u64, microseconds */

enum {
	CONTROL_INVALID_ARGUMENT = 0x1f,
	CONTROL_INVALID_CLIENT = 0x23,
	CONTROL_INVALID_PARAM_STRUCT = 0x37,
	CONTROL_NOT_SUPPORTED = 0x56,
};

/* Makes the call for a context that has its place in the engine. */
void control_slice(struct context *c);

#endif
