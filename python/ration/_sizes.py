"""Sizes and times, in the form that the commands take."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Optional, Union

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)(\.\d+)?([kmgt]?)(i?b)?", re.IGNORECASE | re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_TIME = re.compile(r"(\d+(?:\.\d+)?)([smh]?)", re.ASCII)


def parse_size(size: Union[int, str]) -> int:
    """Returns a size in bytes: 20g, 512m and 1.5GiB, or a number of bytes. k, m, g and t are powers of 1024."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None or (match[2] and not match[3]) or (match[4] and not match[3] and match[4].lower() != "b"):
        raise ValueError(f"{size!r} is not a size (use bytes or a number with k, m, g or t, like '20g' or '1.5g')")
    return int(Fraction(match[1] + (match[2] or "")) * _UNITS[match[3].lower()])


def parse_seconds(time: Union[float, str, None]) -> Optional[float]:
    """Returns a time in seconds: 30s, 10m and 2h, or a number of seconds. None is no limit."""
    if time is None:
        return None
    if isinstance(time, (int, float)) and not isinstance(time, bool) and time >= 0:
        return float(time)
    match = _TIME.fullmatch(time) if isinstance(time, str) else None
    if match is None:
        raise ValueError(f"{time!r} is not a time (use seconds or a number with s, m or h, like '10m')")
    return float(match[1]) * _SECONDS[match[2]]


def format_size(size: int) -> str:
    """Returns a size for people, with three digits: 19.8 GiB."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1000 or unit == "TiB":
            break
        value /= 1024
    if value == int(value) or unit == "B":
        return f"{int(value)} {unit}"
    text = f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " " + unit
