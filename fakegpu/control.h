/* The call by which libcuda sets a context's time slice, and the kernel module that handles it.
 *
 * For each context libcuda makes one control call (an ioctl on the driver's control device) that
 * sets the slice of the context's group of channels; the groups for copies make none. The call goes
 * through the dynamic symbol `ioctl`, so that a preloaded library sees it and may change it. This
 * library's own `ioctl`, which dlsym finds in libcuda.so.1, stands for the kernel module (in a real
 * libcuda.so.1, dlsym finds that of libc). The control device is a plain file: if a call went to
 * libc's ioctl, it returns with an error, and is then handled here, with the values that it has by
 * then.
 *
 * Before that call, libcuda starts the group by another. When a process is restored (checkpoint.h),
 * libcuda opens the control device anew and makes the groups again, for another client and with the
 * same objects. It starts them, and sets no slice: they have the kernel module's. */
#ifndef FAKEGPU_CONTROL_H
#define FAKEGPU_CONTROL_H

#include <stdint.h>

struct context;

/* The layout of the open kernel module. */
struct control_args {
	uint32_t client, object; /* together they name the group of channels */
	uint32_t command;
	uint32_t flags;
	uint64_t params; /* address of the command's parameter */
	uint32_t size;   /* size of the parameter, in bytes */
	uint32_t status; /* 0, or a CONTROL_... error */
};

#define CONTROL_REQUEST _IOWR('F', 0x2a, struct control_args)

enum { CONTROL_START = 0xa06c0101 };                                     /* three flags of a byte */
enum { CONTROL_SET_SLICE = 0xa06c0103, CONTROL_GET_SLICE = 0xa06c0104 }; /* a u64, microseconds */

enum {
	CONTROL_INVALID_ARGUMENT = 0x1f,
	CONTROL_INVALID_CLIENT = 0x23,
	CONTROL_INVALID_PARAM_STRUCT = 0x37,
	CONTROL_NOT_SUPPORTED = 0x56,
};

/* Makes the control calls for a new context that has an entry in the engine. */
void control_slice(struct context *c);

/* control_close is called when a process is put aside: the control device is closed. control_restore
 * is called when it comes back, and control_restart then for each of its contexts. */
void control_close(void);
void control_restore(void);
void control_restart(struct context *c);

#endif
