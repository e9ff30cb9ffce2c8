"""The magic %ration, for IPython. This module does not import it."""

from __future__ import annotations

from typing import Any

from ._machine import Error
from ._status import status
from ._wait import wait_for

_USE = "%ration shows this job; %ration wait SIZE [TIME] waits until that much memory can be had, like %ration wait 20g 10m"


def magic(line: str) -> None:
    """Shows this job's GPU memory. %ration wait SIZE [TIME] waits until that much can be had."""
    words = line.split()
    if words[:1] == ["wait"] and len(words) in (2, 3):
        wait_for(words[1], timeout=words[2] if len(words) == 3 else None)  # its error stops the cells that follow
    elif words:
        print(_USE)
        return
    try:
        print(status())
    except Error as e:  # a sentence helps more than the trace
        print(f"ration: {e}")


def load_ipython_extension(ipython: Any) -> None:
    """For %load_ext ration."""
    ipython.register_magic_function(magic, "line", "ration")
