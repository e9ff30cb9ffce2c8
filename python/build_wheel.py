"""Builds the wheel with the standard library alone: python3 build_wheel.py FOLDER VERSION.

It is also the backend of pyproject.toml, so that pip install works without a network. The same files and
version always make the same bytes: the entries have fixed times and modes, and are not compressed, as two
versions of zlib compress differently.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))


def python_version(version: str) -> str:
    """Returns a version of scripts/version as Python writes it: 0.2.0-dev.7+gabc is 0.2.0.dev7+gabc."""
    public, _, local = version.partition("+")
    release, dash, commits = public.partition("-dev")
    if dash:
        release += ".dev" + (commits.lstrip(".") or "0")
    out = release + ("+" + local.lower() if local else "")
    if not re.fullmatch(r"\d+(\.\d+)*(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?", out):
        raise ValueError(f"{version}: not a version (scripts/version prints it)")
    return out


def write(folder: str, version: str) -> str:
    """Writes the wheel into a folder and returns its name."""
    version = python_version(version)
    info = f"ration-{version}.dist-info"
    files: dict[str, bytes] = {}
    for name in sorted(os.listdir(os.path.join(HERE, "ration"))):
        if name.endswith(".py") or name == "py.typed":
            with open(os.path.join(HERE, "ration", name), "rb") as f:
                files["ration/" + name] = f.read()
    files[info + "/METADATA"] = (
        f"Metadata-Version: 2.1\nName: ration\nVersion: {version}\nSummary: How much GPU memory this job may use, holds, and can still get\n"
        "License: Apache-2.0\nRequires-Python: >=3.9\n"
    ).encode()
    files[info + "/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: ration\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[info + "/RECORD"] = (record + info + "/RECORD,,\n").encode()

    wheel = f"ration-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, wheel), "w", zipfile.ZIP_STORED) as out:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)  # of 1980, the first year that a zip knows
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            out.writestr(entry, data)
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def build_wheel(folder: str, settings: object = None, metadata: object = None) -> str:
    """For pip."""
    return write(folder, subprocess.check_output([os.path.join(HERE, "..", "scripts", "version")], text=True).strip())


def build_sdist(folder: str, settings: object = None) -> str:
    """For pip, which asks for it only if there is no wheel."""
    raise NotImplementedError("there is no source distribution (build a wheel: make dist)")


if __name__ == "__main__":
    print(write(sys.argv[1], sys.argv[2]))
