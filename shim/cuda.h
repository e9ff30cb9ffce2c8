/* The part of the CUDA driver's and NVML's binary interface that the hooks read:
 * handles are opaque, and a struct is here only if a field of it is read. */
#ifndef RATION_CUDA_H
#define RATION_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int nvmlReturn_t;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_NOT_SUPPORTED = 801,
};

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_LIBRARY_NOT_FOUND = 12,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1; /* the address type of the calls of CUDA 2 and 3, which have no suffix */
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx *CUcontext;
typedef struct CUgreen *CUgreenCtx;
typedef struct CUstr *CUstream;
typedef struct CUev *CUevent;
typedef struct {
	unsigned char bytes[64];
} CUipcMemHandle, CUipcEventHandle;
typedef struct CUmod *CUmodule;
typedef struct CUlib *CUlibrary;
typedef struct CUkern *CUkernel;
typedef struct CUfunc *CUfunction;
typedef struct CUarr *CUarray;
typedef struct CUmip *CUmipmappedArray;
typedef struct CUpool *CUmemoryPool;
typedef struct CUgr *CUgraph;
typedef struct CUnode *CUgraphNode;
typedef struct CUexec *CUgraphExec;
typedef struct nvmlDev *nvmlDevice_t;

typedef struct {
	unsigned char bytes[16];
} CUuuid;

enum { CU_MEM_ATTACH_GLOBAL = 1, CU_MEM_ATTACH_HOST = 2 };
enum {
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_ALLOCATION_TYPE_MANAGED = 2,
	CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1
};

typedef struct {
	int type, id;
} CUmemLocation;

typedef struct {
	int type, requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	unsigned char allocFlags[8];
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

typedef struct {
	int allocType, handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

enum { CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5, CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7 };
enum { CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH = 1 };
enum {
	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39,
	CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
};
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_LIMIT_STACK_SIZE = 0, CU_LIMIT_MALLOC_HEAP_SIZE = 2 };
enum { CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900 };
enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_STATUS_ACTIVE = 1 };
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef struct {
	CUmemPoolProps poolProps;
	const void *accessDescs;
	size_t accessDescCount;
	size_t bytesize;
	CUdeviceptr dptr;
} CUDA_MEM_ALLOC_NODE_PARAMS;

enum { CU_GRAPH_NODE_TYPE_GRAPH = 4, CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10, CU_GRAPH_NODE_TYPE_MEM_FREE = 11 };

/* type decides which member of params is valid. */
typedef struct {
	int type;
	int reserved0[3];
	union {
		CUDA_MEM_ALLOC_NODE_PARAMS alloc;
		CUdeviceptr frees; /* the address, for a node that frees */
		long long reserved1[29];
	} params;
	long long reserved2;
} CUgraphNodeParams;

/* The configuration of a launch; fields after hStream are not read. */
typedef struct {
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	CUstream hStream;
} CUlaunchConfig;

enum {
	CU_AD_FORMAT_UNSIGNED_INT8 = 0x01,
	CU_AD_FORMAT_UNSIGNED_INT16 = 0x02,
	CU_AD_FORMAT_SIGNED_INT8 = 0x08,
	CU_AD_FORMAT_SIGNED_INT16 = 0x09,
	CU_AD_FORMAT_HALF = 0x10,
};

/* Flags of arrays. Memory is mapped later to arrays with the last two. */
enum { CUDA_ARRAY3D_LAYERED = 0x01, CUDA_ARRAY3D_CUBEMAP = 0x04, CUDA_ARRAY3D_SPARSE = 0x40, CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80 };

typedef struct {
	unsigned Width, Height;
	int Format;
	unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
	size_t Width, Height;
	int Format;
	unsigned NumChannels;
} CUDA_ARRAY_DESCRIPTOR;

typedef struct {
	unsigned Width, Height, Depth;
	int Format;
	unsigned NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef struct {
	size_t Width, Height, Depth;
	int Format;
	unsigned NumChannels, Flags;
} CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
	size_t size, alignment;
	unsigned reserved[4];
} CUDA_ARRAY_MEMORY_REQUIREMENTS;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned version;
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned pid;
	unsigned long long usedGpuMemory;
	unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t; /* for the calls _v2 and _v3 */

#define NVML_MEMORY_V2 ((unsigned)sizeof(nvmlMemory_v2_t) | 2u << 24)
#define NVML_VALUE_NOT_AVAILABLE (~0ull)

_Static_assert(sizeof(CUmemAllocationProp) == 32, "ABI");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "ABI");
_Static_assert(offsetof(CUlaunchConfig, hStream) == 32, "ABI");
_Static_assert(sizeof(CUmemPoolProps) == 88, "ABI");
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "ABI");
_Static_assert(offsetof(CUgraphNodeParams, params) == 16 && sizeof(CUgraphNodeParams) == 256, "ABI");
_Static_assert(sizeof(CUDA_ARRAY_DESCRIPTOR_v1) == 16 && sizeof(CUDA_ARRAY_DESCRIPTOR) == 24, "ABI");
_Static_assert(sizeof(CUDA_ARRAY3D_DESCRIPTOR_v1) == 24 && sizeof(CUDA_ARRAY3D_DESCRIPTOR) == 40, "ABI");
_Static_assert(sizeof(CUDA_ARRAY_MEMORY_REQUIREMENTS) == 32, "ABI");
_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "ABI");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16 && sizeof(nvmlProcessInfo_t) == 24, "ABI");

#endif
