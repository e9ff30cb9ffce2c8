#!/usr/bin/env python3
"""Reads a region as docs/format.md says, and prints it as JSON.

    region_reader.py docs/format.md /run/ration/train/region

Every offset, bit and constant comes from the tables of that page, at run time: this
file knows only names. It is an example for a reader in another language, and the
test that the page is enough to write one.
"""

import fcntl
import json
import os
import re
import stat
import struct
import sys


class Refused(Exception):
    """The file is not a region that this page describes, or is not ready."""


class Format:
    """The tables of the page."""

    def __init__(self, page):
        self.structures, self.words, self.constants = {}, {}, {}
        heading, columns = "", []
        for line in page.splitlines():
            if line.startswith("#"):
                heading = line.lstrip("# ")
            elif not line.startswith("|"):
                columns = []
            elif not columns:
                columns = cells(line)
            elif not line.startswith("|-"):
                self.row(heading, dict(zip(columns, cells(line))))

    def row(self, heading, row):
        if "value" in row:
            self.constants[row["name"]] = int(row["value"], 0)
        elif "part" in row:
            self.words.setdefault(heading, {})[row["part"]] = (int(row["lowest bit"]), int(row["bits"]), row["type"] == "signed")
        elif row.get("field"):
            kind, dims = re.fullmatch(r"\[?(\w+)\]?(?:\(#\w+\))?((?:\[\d+\])*)", row["type"]).groups()
            dims = [int(n) for n in re.findall(r"\d+", dims)]
            packed = re.search(r"packed by \[(\w+)\]", row["meaning"])
            self.structures.setdefault(heading, {})[row["field"]] = Field(
                int(row["offset"]), int(row["size"]), kind, dims, packed and packed[1])

    def decode(self, data, field):
        """The value of a field at the start of data: a number, a dictionary, bytes or a list of them."""
        if field.dims:
            if field.kind == "u8":
                return bytes(data[: field.size])
            item = field.item()
            return [self.decode(data[i * item.size:], item) for i in range(field.dims[0])]
        if field.kind in self.structures:
            return {name: self.decode(data[f.offset:], f) for name, f in self.structures[field.kind].items()}
        return int.from_bytes(data[: field.size], "little")

    def unpack(self, word, value):
        """The parts of a packed word."""
        parts = {}
        for name, (low, bits, signed) in self.words[word].items():
            n = value >> low & (1 << bits) - 1
            parts[name] = n - (1 << bits) if signed and n >> bits - 1 else n
        return parts


class Field:
    """Where a field is in its structure, and what it is."""

    def __init__(self, offset, size, kind, dims, packed):
        self.offset, self.size, self.kind, self.dims, self.packed = offset, size, kind, dims, packed

    def item(self, offset=0):
        return Field(offset, self.size // self.dims[0], self.kind, self.dims[1:], self.packed)


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


class File:
    """An open file that holds one structure."""

    def __init__(self, page, path, structure):
        self.page, self.path, self.structure = page, path, structure
        last = max(page.structures[structure].values(), key=lambda f: f.offset)
        self.fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        self.status = os.fstat(self.fd)
        if not stat.S_ISREG(self.status.st_mode):
            raise Refused(f"{path} is not a regular file")
        self.size = self.status.st_size
        self.least = last.offset + last.size

    def find(self, *path):
        """The field that path names, with its offset in the file."""
        at, field = 0, Field(0, 0, self.structure, [], None)
        for step in path:
            if isinstance(step, int):
                field = field.item()
                field.offset = step * field.size
            else:
                field = self.page.structures[field.kind][step]
            at += field.offset
        return Field(at, field.size, field.kind, field.dims, field.packed)

    def read(self, *path):
        """One read of one field."""
        field = self.find(*path)
        data = os.pread(self.fd, field.size, field.offset)
        if len(data) != field.size:
            raise Refused(f"{self.path} was cut short")
        return self.page.decode(data, field)

    def parts(self, *path):
        """One read of one packed word."""
        return self.page.unpack(self.find(*path).packed, self.read(*path))


def identify(f, c):
    if f.size == 0:
        raise Refused("still being made")
    header = f.read("Header")
    if header["Magic"] == 0 and f.size >= f.least:
        raise Refused("still being made")
    if header["Magic"] != c["Magic"]:
        raise Refused("not a region")
    if header["Version"] != c["Version"]:
        raise Refused(f"version {header['Version']}, where the page is for {c['Version']}")
    if header["Size"] != f.size or f.size < f.least:
        raise Refused(f"{f.size} bytes")
    if header["State"] != c["StateComplete"]:
        raise Refused("still being made")
    whole(f, c)
    return header


def whole(f, c):
    if f.read("Tail", "Magic") != c["TailMagic"]:
        raise Refused("damaged")


def limits(f, header, c):
    """The file that holds the limits, and where in it they are."""
    try:
        beside = File(f.page, f.path + ".limits", "Limits")
    except FileNotFoundError:
        if header["Flags"] == c["LimitsBeside"]:
            raise Refused(f"{f.path}.limits is missing") from None
        return f, ["Limits"]
    if beside.status.st_uid not in (0, f.status.st_uid) or beside.status.st_mode & 0o022:
        raise Refused(f"{beside.path} could have been planted")
    if (beside.read("Magic"), beside.read("Version"), beside.read("Size")) != (c["LimitsMagic"], c["Version"], beside.size):
        raise Refused(f"{beside.path} holds no limits")
    return beside, []


def device(f, at, d, c):
    source, path = at
    memory = source.parts(*path, "Device", d, "Memory")
    rest = source.read(*path, "Device", d)
    limited = memory["IsSet"] and memory["Units"] != c["LimitUnlimitedUnits"]
    return {
        "device": d,
        "set": bool(memory["IsSet"]),
        "limited": bool(limited),
        "limit": memory["Units"] * c["Unit"] if limited else 0,
        "compute": rest["Compute"],
        "uuid": "%016x%016x" % tuple(rest["UUID"]),
        "total": rest["Total"],
        "used": f.parts("Devices", d, "LedgerWord")["Units"] * c["Unit"],
        "peak": f.read("Devices", d, "Peak") * c["Unit"],
        "refused": f.read("Devices", d, "Refused"),
        "context_cost": f.parts("Devices", d, "ContextCost")["Units"] * c["Unit"],
    }


def process(f, slot, c):
    """The process in a slot; None where there is none."""
    status = f.read("Status", slot)
    parts = f.page.unpack("Status", status)
    if parts["State"] not in (c["SlotActive"], c["SlotCondemned"], c["SlotLent"]):
        return None
    s = f.read("Slots", slot)
    host = f.page.unpack("HostPID", s["HostPID"])
    accounts = [account(f, d, slot, parts["Gen"], c) for d in range(c["Devices"])]
    locked_by = holder(f, slot)
    if f.read("Status", slot) != status:
        return None
    return {
        "slot": slot,
        "pid": s["PID"],
        "host_pid": host["PID"] if host["Gen"] == parts["Gen"] & 0xFFFFFFFF else 0,
        "locked_by": locked_by,
        "uid": s["UID"],
        "joined": s["Joined"],
        "left": s["Left"],  # the generation that has said that it ends: that of the status, or an earlier one
        "name": s["Name"].split(b"\0")[0].decode(errors="replace"),
        "accounts": [a for a in accounts if a["total"] or a["peak"]],
    }


def account(f, d, slot, gen, c):
    """What the owner of generation gen in a slot has of a device, in one piece."""
    a, tries, copy, peak, driver = ("Accounts", d, slot), 0, None, 0, 0
    while True:
        seen = f.read(*a, "Phase")
        if f.read(*a, "Gen") != gen:
            return {"device": d, "total": 0, "peak": 0}
        phase = f.page.unpack("Phase", seen)["Phase"]
        copy = f.read(*a, "B" if phase == c["PhaseA"] else "A")
        peak, driver = f.read(*a, "Peak"), f.read(*a, "Driver")
        again = f.read(*a, "Phase")
        if again == seen or phase == c["PhaseIdle"] and again == seen + c["PhaseB"]:
            break
        tries += 1
        if tries == c["ReadTries"]:
            break
    return {
        "device": d,
        "total": copy["Total"],
        **{kind.lower(): copy["Kind"][c[kind]] for kind in ("Context", "Module", "Data", "Overhead")},
        "peak": peak,
        "driver": driver,
        "best_effort": tries == c["ReadTries"],
    }


def holder(f, slot):
    """The PID of the process that has the slot's byte locked; 0 where it is dead."""
    flock = struct.pack("@hhqqi", fcntl.F_RDLCK, os.SEEK_SET, f.find("Slots", slot).offset, 1, 0)
    kind, _, _, _, pid = struct.unpack("@hhqqi", fcntl.fcntl(f.fd, fcntl.F_GETLK, flock))
    return 0 if kind == fcntl.F_UNLCK else pid


def ring(f, c, name, structure, following):
    """The entries of a ring that are whole, the newest first."""
    n = f.read("Header", following)
    for ticket in range(n - 1, max(0, n - c[name]) - 1, -1):
        at = (name, ticket % c[name])
        field = f.find(*at)
        if f.read(*at, "Seq") != 2 * ticket + 2:
            continue
        data = os.pread(f.fd, field.size, field.offset)
        e = f.page.decode(data, field)
        words = struct.unpack(f"<{len(data) // 8}Q", data)
        total = 0
        for word in words[f.page.structures[structure]["Sum"].offset // 8 + 1:]:
            total ^= word
        if e["Seq"] == 2 * ticket + 2 and f.read(*at, "Seq") == e["Seq"] and e["Sum"] == total:
            yield e


def refusals(f, c):
    """The latest refusals."""
    for e in ring(f, c, "Refusals", "Refusal", "RefusalNext"):
        yield {
            "time": e["Time"], "device": e["Device"], "slot": e["Slot"], "pid": e["PID"],
            "asked": e["Asked"], "held": e["Held"], "limit": e["Limit"], "own": e["Own"],
            "top": [{"pid": h["PID"], "bytes": h["Bytes"]} for h in e["Top"] if h["Bytes"]],
        }


def deaths(f, c):
    """The latest deaths."""
    for e in ring(f, c, "Deaths", "Death", "DeathNext"):
        yield {
            "time": e["Time"], "slot": e["Slot"], "pid": e["PID"],
            "hostpid": f.page.unpack("HostPID", e["HostPID"])["PID"],
            "name": e["Name"].split(b"\0")[0].decode(errors="replace"),
            "joined": e["Joined"], "reaper": e["Reaper"], "held": e["Held"],
            "cause": e["Cause"] & ~c["CauseAsleep"], "asleep": e["Cause"] & c["CauseAsleep"] != 0,
        }


def read(page, path):
    c = page.constants
    f = File(page, path, "Region")
    header = identify(f, c)
    at = limits(f, header, c)
    slots = range(min(header["HighWater"], c["Slots"]))
    out = {
        "created": header["Created"],
        "counters": {name.lower(): n for name, n in header["Counters"].items()},
        "devices": [device(f, at, d, c) for d in range(c["Devices"])],
        "processes": [p for p in (process(f, slot, c) for slot in slots) if p],
        "refusals": list(refusals(f, c)),
        "deaths": list(deaths(f, c)),
    }
    whole(f, c)
    return out


def main():
    try:
        with open(sys.argv[1], encoding="utf-8") as page:
            print(json.dumps(read(Format(page.read()), sys.argv[2])))
    except (Refused, OSError) as e:
        sys.exit(f"{sys.argv[2]}: {e}")


if __name__ == "__main__":
    main()
