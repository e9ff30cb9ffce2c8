"""meminfo.py [jax]: how much memory a program in the job sees.

    read smi_total_mib=N smi_used_mib=N torch_total=N torch_free=N torch_props=N

nvidia-smi runs while this process has a context; "none" is a value that it did not print. With jax:

    read bytes_limit=N bytes_in_use=N

after a first computation: by default XLA reserves 75 % of the device at once. "none": the allocator has no statistics
(XLA_PYTHON_CLIENT_ALLOCATOR=platform).
"""

import os
import subprocess
import sys

from steps import step


def smi():
    """Total and used MiB of the device of this process, by nvidia-smi."""
    try:
        answer = subprocess.run(["nvidia-smi", "--query-gpu=memory.total,memory.used", "--format=csv,noheader,nounits",
                                 "--id=" + os.environ.get("CUDA_VISIBLE_DEVICES", "0")],
                                capture_output=True, text=True, timeout=60, check=True).stdout
        total, used = answer.splitlines()[0].split(",")
        return int(total), int(used)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        print(f"nvidia-smi: {error}", file=sys.stderr)
        return "none", "none"


def by_torch():
    import torch
    torch.ones(1, device="cuda").add_(1).item()
    free, total = torch.cuda.mem_get_info()
    smi_total, smi_used = smi()
    step("read", smi_total_mib=smi_total, smi_used_mib=smi_used, torch_total=total, torch_free=free,
         torch_props=torch.cuda.get_device_properties(0).total_memory)


def by_jax():
    os.environ.setdefault("JAX_PLATFORMS", "cuda")  # an error, not the CPU, if there is no device
    import jax
    import jax.numpy as jnp
    (jnp.ones(1024) + 1).block_until_ready()
    stats = jax.local_devices()[0].memory_stats() or {}
    step("read", **{key: stats.get(key, "none") for key in ("bytes_limit", "bytes_in_use")})


if __name__ == "__main__":
    by_jax() if sys.argv[1:] == ["jax"] else by_torch()
