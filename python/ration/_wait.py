"""Waiting until memory can be had."""

from __future__ import annotations

import os
import time
from typing import Optional, Union

from ._machine import Error
from ._sizes import format_size, parse_seconds, parse_size
from ._status import Device, status

_POLL_SECONDS = 1.0


class WaitTimeout(Error, TimeoutError):
    """The memory could not be had in time."""


class TooLarge(Error, ValueError):
    """More than this job may use, or than a GPU has: waiting would never end."""


def wait_for(size: Union[int, str], timeout: Union[float, str, None] = None, device: Optional[int] = None) -> Device:
    """Waits until this job can get that much memory of one GPU, and returns the device that has it.

    device is the number of the GPU; without it, any that this job may use. Nothing is reserved: another process
    can be faster. ration run --wait reserves.
    """
    want, seconds = parse_size(size), parse_seconds(timeout)
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        now = status()
        devices = [d for d in now.devices() if device is None or d.number == device]
        if not devices:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
            raise Error((f"this process has no GPU {device}" if device is not None else "this process may use no GPU that is known here") + why)
        known = [(free, d) for d in devices if (free := d.free) is not None]
        if not known:
            raise Error("what is free is not known: this job has no limit, and the driver cannot be asked (try ration doctor)")
        free, best = max(known, key=lambda entry: entry[0])
        if free >= want:
            return next(d for f, d in known if f >= want)
        if all(d.most is not None and d.most < want for d in devices):
            most = max(d.most or 0 for d in devices)
            raise TooLarge(f"{format_size(want)} is more than this job can ever have on one GPU, which is {format_size(most)} (ask for less, or raise the limit)")
        left = _POLL_SECONDS if end is None else end - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"there was no room for {format_size(want)} on {_name(best)} in time: this job can get {format_size(free)} (release memory, or wait longer)")
        time.sleep(min(left, _POLL_SECONDS))


def _name(d: Device) -> str:
    return f"GPU {d.number}" if d.gpu or d.uuid else "a GPU"
