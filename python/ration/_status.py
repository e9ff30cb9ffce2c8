"""The status of this job and of the machine's GPUs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from ._machine import Error, find_job, own_region, read, read_ration, ruled, users_region
from ._sizes import format_size, parse_size

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


@dataclass(frozen=True)
class GPU:
    """A GPU of this machine, as its driver says. Sizes are bytes."""

    number: int  # as in nvidia-smi
    uuid: str
    name: str
    total: int
    used: int  # by all processes and by the driver itself
    rations: int  # sum of the limits of all jobs that have not ended

    @property
    def free(self) -> int:
        return max(0, self.total - self.used)


@dataclass(frozen=True)
class Device:
    """This job's part of a GPU. Sizes are bytes."""

    number: int  # in this job: as in nvidia-smi, before CUDA_VISIBLE_DEVICES
    uuid: str  # empty until a program of the job has used a GPU
    limit: Optional[int]  # None without a limit
    held: int  # by all processes of the job
    peak: int
    refused: int  # requests
    gpu: Optional[GPU] = None  # None if the driver could not be asked
    waits: bool = False  # others have the room for the user's ration

    @property
    def free(self) -> Optional[int]:
        """What the job can still get: within its limit, and of what the GPU has now. None if neither is known."""
        bounds = [0] if self.waits else []
        if self.limit is not None:
            bounds.append(max(0, self.limit - self.held))
        if self.gpu is not None:
            bounds.append(self.gpu.free)
        return min(bounds) if bounds else None

    @property
    def most(self) -> Optional[int]:
        """What the job could get of the empty GPU. None if that is not known."""
        bounds = [] if self.limit is None else [self.limit]
        if self.gpu is not None:
            bounds.append(self.gpu.total)
        return min(bounds) if bounds else None


@dataclass(frozen=True)
class Job:
    """A job of ration: a command with all processes that it starts."""

    name: str
    path: str  # of its region
    owner: str
    state: str  # starting, running, idle or ended; under a policy also waiting, for the user's ration, and none
    devices: list[Device]
    labels: dict[str, str] = field(default_factory=dict)
    created_at: Optional[datetime] = None
    idle_since: Optional[datetime] = None  # known only if an agent runs
    placed: Optional[str] = ""  # why it sees these GPUs and no others; empty if it sees all, None if they are not chosen yet

    @property
    def held(self) -> int:
        return sum(d.held for d in self.devices)


@dataclass(frozen=True)
class Status:
    """What ration.status() returns; print() shows it as a table."""

    job: Optional[Job]  # None if this process is in no job
    gpus: list[GPU]  # empty if the driver could not be asked
    source: str  # the agent's socket, or the command

    def devices(self) -> list[Device]:
        """The devices that this process may use: the job's or, without a job, the machine's.

        If CUDA_VISIBLE_DEVICES is set, they are those that it selects, in its order.
        """
        shared = [Device(g.number, g.uuid, None, 0, 0, 0, g) for g in self.gpus]
        job, visible = self.job, os.environ.get("CUDA_VISIBLE_DEVICES")
        if job is None or not job.devices:
            return shared if visible is None else select(visible, shared)
        # A job whose programs have used no GPU yet has a limit for each number that there could be.
        devices = [d for d in job.devices if d.gpu is not None or not shared] or job.devices
        if visible is None or job.placed is None:
            return devices
        if job.placed:  # its programs see these only, and count them from 0
            return select(visible, devices, [str(number) for number in range(len(devices))])
        others = [s for s in shared if all(s.number != d.number for d in devices)]
        return [d for d in select(visible, [*devices, *others]) if d not in others]

    def __str__(self) -> str:
        if self.job is None:
            lines = ["This process is in no job of ration." if self.gpus else "This process is in no job of ration, and the GPUs are not known."]
        else:
            lines = [f"Job {self.job.name or self.job.path}: {self.job.state}"]
        rows = [("GPU", "HELD", "LIMIT", "PEAK", "CAN GET", "GPU USED")]
        for d in self.devices()[: None if self.gpus else 1]:
            free, gpu = d.free, d.gpu
            rows.append((
                str(d.number) if gpu or d.uuid else "any",
                format_size(d.held),
                "-" if d.limit is None else format_size(d.limit),
                format_size(d.peak),
                "-" if free is None else format_size(free),
                "-" if gpu is None else f"{format_size(gpu.used)} of {format_size(gpu.total)}",
            ))
        if len(rows) > 1:
            widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
            lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How IPython shows it."""
        printer.text(str(self))


def status() -> Status:
    """Returns the limits of this job, what it holds, and the GPUs of this machine."""
    region = own_region()
    machine, source = read(region)
    try:
        gpus = [_gpu(g) for g in machine.get("devices") or []]
        found = None if region is None else find_job(machine, region)
        job = None if found is None else _job(found, gpus)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise Error(f"{source} gave an answer that this package does not understand: {e!r} (are both of one version?)") from e
    if job is None and region == users_region() and ruled():  # its first CUDA program makes it
        job = _ration(machine, region, gpus)
    if region is not None and job is None:
        raise Error(f"the job of this process cannot be read: {source} does not list {region} (has it ended, or is it another user's?)")
    if found is not None and found.get("error"):
        raise Error(f"the job of this process cannot be read: {found['error']}")
    return Status(job, gpus, source)


def select(visible: str, devices: list[Device], numbers: Optional[list[str]] = None) -> list[Device]:
    """Returns the devices that a value of CUDA_VISIBLE_DEVICES selects: by number, UUID or the beginning of a UUID.

    As with the driver, an entry that selects no device ends the list, and a device that is named twice is an error.
    """
    numbers = numbers or [str(d.number) for d in devices]
    uuids = [(d.uuid or (d.gpu.uuid if d.gpu else "")).lower() for d in devices]
    out: list[Device] = []
    for entry in visible.split(","):
        entry = entry.strip(" ").lower()
        if entry.startswith(("gpu-", "mig-")):
            found = [d for d, uuid in zip(devices, uuids) if len(entry) > len("gpu-") and uuid.startswith(entry)]
            if not found and ("" in uuids or entry.startswith("mig-")):
                return devices  # which of them that is, is not known here
        else:
            digits = re.fullmatch(r"0*(\d+)", entry, re.ASCII)
            found = [d for d, number in zip(devices, numbers) if digits is not None and digits[1] == number]
        if len(found) != 1:
            break
        if found[0] in out:
            return []
        out += found
    return out


def _gpu(g: dict[str, Any]) -> GPU:
    return GPU(int(g["device"]), str(g["uuid"]), str(g["name"]), int(g["total"]), int(g["used"]), int(g["rations"]))


def _job(j: dict[str, Any], gpus: list[GPU]) -> Job:
    return Job(
        name=str(j.get("job") or ""),
        path=str(j["path"]),
        owner=str(j["owner"]),
        state=str(j["state"]),
        devices=[_device(d, gpus) for d in j.get("devices") or []],
        labels={str(k): str(v) for k, v in (j.get("labels") or {}).items()},
        created_at=_time(j.get("created_at")),
        idle_since=_time(j.get("idle_since")),
        placed=str(j.get("placed") or ""),
    )


def _device(d: dict[str, Any], gpus: list[GPU]) -> Device:
    number, uuid = int(d["device"]), str(d.get("uuid") or "")
    gpu = next((g for g in gpus if (g.uuid == uuid if uuid else g.number == number)), None)
    return Device(number, uuid, int(d["limit"]) if d["limited"] else None, int(d["used"]), int(d["peak"]), int(d["refused"]), gpu)


def _ration(machine: dict[str, Any], region: str, gpus: list[GPU]) -> Job:
    """Returns the job that the policy will make for this user, with the limits of the ration."""
    ration = read_ration()
    waits = any(w.get("path") == region for w in machine.get("waiting") or [])
    limits = parse_limits(str(ration["ration"]["memory"]), gpus)
    room = ration.get("room")  # not known without the policy's service
    full = {g.number for g in gpus if room is not None and g.number not in room}
    devices = [Device(g.number, g.uuid, limits[g.number], 0, 0, 0, g, waits or g.number in full) for g in gpus if g.number in limits]
    placed = None if ration.get("gpu_count") else ""  # the first program decides which GPUs they are
    return Job(str(ration["user"]), region, str(ration["user"]), "waiting" if waits else "none", devices, placed=placed)


def parse_limits(memory: str, gpus: list[GPU]) -> dict[int, Optional[int]]:
    """Returns the limit of each GPU that a ration is for, as 10g, or none,0=25%; None is no limit."""
    named, others = {}, None
    for part in memory.split(","):
        number, equals, size = part.rpartition("=")
        if equals:
            named[int(number)] = size
        else:
            others = size
    out: dict[int, Optional[int]] = {}
    for g in gpus:
        size = named.get(g.number, others)
        if size is None:
            continue  # a GPU that a ration does not name is not for the user
        if size in ("none", "unset"):
            out[g.number] = None
        elif size.endswith("%"):
            out[g.number] = int(g.total * float(size[:-1]) / 100)
        else:
            out[g.number] = parse_size(size)
    return out


def _time(text: Optional[str]) -> Optional[datetime]:
    """Reads a time as Go writes it, with up to nine digits of a second; Python before 3.11 reads three or six."""
    if not text:
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time")
    micros = (match[2] or ".").lstrip(".")[:6].ljust(6, "0")
    return datetime.fromisoformat(match[1] + ("+00:00" if match[3] == "Z" else match[3])).replace(microsecond=int(micros))
