#include "driver.h"

struct error {
	CUresult code;
	const char *name, *text;
};

#define E(code, text) {CUDA_##code, "CUDA_" #code, text}

static const struct error errors[] = {
	E(SUCCESS, "no error"),
	E(ERROR_INVALID_VALUE, "invalid argument"),
	E(ERROR_OUT_OF_MEMORY, "out of memory"),
	E(ERROR_NOT_INITIALIZED, "initialization error"),
	E(ERROR_DEINITIALIZED, "driver shutting down"),
	E(ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
	E(ERROR_INVALID_DEVICE, "invalid device ordinal"),
	E(ERROR_INVALID_IMAGE, "device kernel image is invalid"),
	E(ERROR_INVALID_CONTEXT, "invalid device context"),
	E(ERROR_MAP_FAILED, "mapping of buffer object failed"),
	E(ERROR_UNMAP_FAILED, "unmapping of buffer object failed"),
	E(ERROR_ALREADY_MAPPED, "resource already mapped"),
	E(ERROR_NOT_MAPPED, "resource not mapped"),
	E(ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
	E(ERROR_FILE_NOT_FOUND, "file not found"),
	E(ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
	E(ERROR_INVALID_HANDLE, "invalid resource handle"),
	E(ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
	E(ERROR_NOT_FOUND, "named symbol not found"),
	E(ERROR_NOT_READY, "device not ready"),
	E(ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
	E(ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
	E(ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
	E(ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
	E(ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
	E(ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
	E(ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
	E(ERROR_NOT_PERMITTED, "operation not permitted"),
	E(ERROR_NOT_SUPPORTED, "operation not supported"),
	E(ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
	E(ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
	E(ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
	E(ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
	E(ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
	E(ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
	E(ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
	E(ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream"),
	E(ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
	E(ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread"),
	E(ERROR_UNKNOWN, "unknown error"),
};

static const struct error *error_find(CUresult code)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code)
			return &errors[i];
	return NULL;
}

API cuGetErrorString(CUresult code, const char **text)
{
	const struct error *e = error_find(code);
	if (text == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*text = e == NULL ? NULL : e->text;
	return e == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuGetErrorName(CUresult code, const char **name)
{
	const struct error *e = error_find(code);
	if (name == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	*name = e == NULL ? NULL : e->name;
	return e == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
