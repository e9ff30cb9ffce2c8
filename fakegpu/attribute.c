#include "driver.h"

/* Attributes by number, with the values of an H200. Those that depend on the model or the device
 * are computed below. Numbers up to LAST that are not listed are 0. */
enum { LAST = 147 };

/* clang-format off: the numbers are grouped by meaning; keep the groups */
static const int attribute_fixed[LAST + 1] = {
	[1] = 1024,       [2] = 1024,     [3] = 1024,       [4] = 64,          /* threads per block, block dimensions */
	[5] = 2147483647, [6] = 65535,    [7] = 65535,                         /* grid dimensions */
	[8] = 49152,      [9] = 65536,    [10] = 32,        [11] = 2147483647, /* shared, constant, warp, pitch */
	[12] = 65536,     [13] = 1980000, [14] = 512,       [15] = 1,          /* registers, clock, texture alignment, overlap */
	[19] = 1,                                                              /* host memory can be mapped */
	[21] = 131072,    [22] = 131072,  [23] = 65536,     [24] = 16384,      [25] = 16384, [26] = 16384,
	[31] = 1,         [32] = 1, /* concurrent kernels, ECC */
	[36] = 3201000,   [37] = 6016,    [38] = 62914560,  [39] = 2048,       [40] = 3,     [41] = 1,
	[78] = 1,         [79] = 1,       [80] = 1,         [81] = 233472,     [82] = 65536, [83] = 1, /* priorities, caches, managed */
	[87] = 2,         [89] = 1,       [90] = 1,         [91] = 1,          [95] = 1,     [96] = 1,
	[97] = 232448,    [99] = 1,       [102] = 1,        [103] = 1, /* virtual memory, exports by descriptor */
	[106] = 32,       [107] = 1,      [108] = 39321600, [109] = 134217728, [110] = 1,    [111] = 1024,
	[112] = 1,        [113] = 1,      [114] = 1,        [115] = 1, /* memory pools */
	[116] = 1,        [117] = 1,      [118] = 100,      [119] = 1,         [120] = 1,    [121] = 1,
	[122] = 1,        [123] = 1,      [124] = 1,        [125] = 1,         [127] = 1,    [129] = 1,
	[131] = -1,       [141] = 1,      [142] = 1,        [144] = 1,         [145] = 1,
};
/* clang-format on */

enum {
	MULTIPROCESSOR_COUNT = 16,
	PCI_BUS_ID = 33,
	PCI_DEVICE_ID = 34,
	MAJOR = 75,
	MINOR = 76,
	MULTI_GPU_BOARD_GROUP = 85,
};

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	const struct model *m = machine_shape()->model;

	TRY(device_check(device));
	if (value == NULL || attribute < 1 || attribute > LAST)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case MULTIPROCESSOR_COUNT: *value = m->sms; break;
	case PCI_BUS_ID: *value = (int)bus_number(device_index(device)); break;
	case PCI_DEVICE_ID: *value = 0; break;
	case MAJOR: *value = m->major; break;
	case MINOR: *value = m->minor; break;
	case MULTI_GPU_BOARD_GROUP: *value = (int)device_index(device); break;
	default: *value = attribute_fixed[attribute]; break;
	}
	return CUDA_SUCCESS;
}
