"""visible.py UUID: how many devices a program in the job sees.

    read start=N cuda=N nvml=N found=N

start is the result of cuInit, cuda and nvml are numbers of devices, and found is NVML's result for the device of that UUID.
Only ctypes is needed.
"""

import ctypes
import sys

from steps import step

cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
count, listed, handle = ctypes.c_int(), ctypes.c_uint(), ctypes.c_void_p()
start = cuda.cuInit(0)
if start == 0:
    cuda.cuDeviceGetCount(ctypes.byref(count))
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetCount_v2(ctypes.byref(listed))
found = nvml.nvmlDeviceGetHandleByUUID(sys.argv[1].encode(), ctypes.byref(handle))
step("read", start=start, cuda=count.value, nvml=listed.value, found=found)
