#include "driver.h"
#include "fakegpu.h"

_Static_assert((int)FAKEGPU_CONTEXT == (int)KIND_CONTEXT && (int)FAKEGPU_MODULE == (int)KIND_MODULE &&
                   (int)FAKEGPU_DATA == (int)KIND_DATA,
               "the same kinds");

EXPORT int fakegpu_truth(int device, uint64_t *mine, uint64_t *total)
{
    unsigned d;
    if (device_check(device) != CUDA_SUCCESS)
        return -1;
    imports_adopt();
    machine_reap();
    d = device_index(device);
    if (mine != NULL)
        *mine = machine_mine(d);
    if (total != NULL)
        *total = machine_used(d);
    return 0;
}

EXPORT int fakegpu_truth_kind(int device, enum fakegpu_kind kind, uint64_t *mine, uint64_t *total)
{
    unsigned d;
    if (device_check(device) != CUDA_SUCCESS || (unsigned)kind >= KIND_COUNT)
        return -1;
    imports_adopt();
    machine_reap();
    d = device_index(device);
    if (mine != NULL)
        *mine = machine_kind(d, (enum kind)kind, false);
    if (total != NULL)
        *total = machine_kind(d, (enum kind)kind, true);
    return 0;
}

EXPORT unsigned fakegpu_errors(void) { return report_errors(); }
EXPORT unsigned fakegpu_leaks(void) { return report_leaks(); }
