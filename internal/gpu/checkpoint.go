//go:build cgo

package gpu

/*
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

// A policy may load libration.so into this process. It must not wait for the job that this process wakes.
static void as_ration(void)
{
	void (*show)(void) = dlsym(RTLD_DEFAULT, "ration_show_machine");
	if (show)
		show();
}

static struct {
	int (*init)(unsigned), (*state)(int, int *), (*call[4])(int, void *);
} cuda;

// cuda_open returns 0, -1 if there is no libcuda, -2 if it cannot put memory aside, or CUDA's error.
static int cuda_open(void)
{
	static const char *names[] = {"cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"};
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return -1;
	as_ration();
	*(void **)&cuda.init = dlsym(lib, "cuInit");
	*(void **)&cuda.state = dlsym(lib, "cuCheckpointProcessGetState");
	for (int i = 0; i < 4; i++)
		*(void **)&cuda.call[i] = dlsym(lib, names[i]);
	if (!cuda.init || !cuda.state || !cuda.call[0] || !cuda.call[1] || !cuda.call[2] || !cuda.call[3])
		return -2;
	return cuda.init(0);
}

struct lock_args {
	unsigned timeout_ms, reserved0;
	uint64_t reserved1[7];
};

static int cuda_call(int call, int pid, unsigned timeout_ms)
{
	struct lock_args args = {timeout_ms};
	return cuda.call[call](pid, call == 0 ? &args : NULL);
}

static int cuda_state(int pid, int *state) { return cuda.state(pid, state); }
*/
import "C"

import (
	"fmt"
	"time"
)

// OpenCheckpoint starts CUDA in this process, to put the memory of others aside.
func OpenCheckpoint() error {
	switch code := C.cuda_open(); code {
	case 0:
		return nil
	case -1:
		return fmt.Errorf("loading libcuda.so.1: %w (install the driver)", ErrNoDriver)
	case -2:
		return ErrNoCheckpoint
	default:
		return CUDAError(code)
	}
}

// CallCheckpoint asks the driver to change the state of a process. It waits for as long as the process does not
// answer, for example because it is stopped.
func CallCheckpoint(call CheckpointCall, pid int, timeout time.Duration) error {
	if code := C.cuda_call(C.int(call), C.int(pid), C.uint(timeout.Milliseconds())); code != 0 {
		return CUDAError(code)
	}
	return nil
}

// CheckpointStateOf returns the state of a process.
func CheckpointStateOf(pid int) (CheckpointState, error) {
	var state C.int
	if code := C.cuda_state(C.int(pid), &state); code != 0 {
		return 0, CUDAError(code)
	}
	return CheckpointState(state), nil
}
