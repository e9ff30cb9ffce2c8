"""How much GPU memory this job may use, holds, and can still get.

    import ration

    print(ration.status())                  # this job, and the GPUs of this machine
    ration.wait_for("20g", timeout="10m")   # until 20 GiB can be had

In a notebook: %load_ext ration, then %ration.

The numbers come from the agent (ration agent) or, if none answers, from the command ration ps --json. Nothing
is imported but the standard library, and importing this does nothing.
"""

from ._machine import Error, NotAvailable
from ._magic import load_ipython_extension
from ._sizes import format_size, parse_size
from ._status import GPU, Device, Job, Status, status
from ._wait import TooLarge, WaitTimeout, wait_for

__all__ = [
    "Device",
    "Error",
    "GPU",
    "Job",
    "NotAvailable",
    "Status",
    "TooLarge",
    "WaitTimeout",
    "format_size",
    "load_ipython_extension",
    "parse_size",
    "status",
    "wait_for",
]
