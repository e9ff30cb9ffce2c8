"""Reads what the agent or the command says about this machine, as JSON."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
from typing import Any, Optional

# A program must not hang because an agent does: then the command answers.
_AGENT_SECONDS = 2.0
_COMMAND_SECONDS = 30.0
_MAX_ANSWER = 64 << 20

_ROOT_FOLDER = "/run/ration"
_IN_FORCE = "/etc/ration/in-force.toml"  # exists while a policy is in force


class Error(Exception):
    """The base of all errors of this package. Its text is a sentence that says what to do."""


class NotAvailable(Error):
    """Neither an agent nor the command ration has answered."""


def read(region: Optional[str]) -> tuple[dict[str, Any], str]:
    """Returns the machine as this user may see it, with the job of a region if there is one, and where it came from.

    It has the form of ration ps --json.
    """
    failed = []
    for path in agent_sockets():
        try:
            machine = _ask_agent(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, http.client.HTTPException) as e:
            failed.append(f"the agent at {path} did not answer: {e}")
            continue
        # A job in another place, as one that was mounted into a container, is not in the agent's list.
        if region is None or find_job(machine, region) is not None:
            return machine, path
    command = shutil.which("ration")
    if command is None:
        failed.append("there is no command ration in PATH")
        raise NotAvailable("; ".join(failed) + " (install ration, or start ration agent)")
    machine = _run([command, "ps", "--json"])  # which also returns the memory of dead processes to their jobs
    if region is not None and find_job(machine, region) is None and os.path.exists(region):
        machine["jobs"] = _run([command, "ps", "--json", "--region", region]).get("jobs")
    return machine, command


def find_job(machine: dict[str, Any], region: str) -> Optional[dict[str, Any]]:
    """Returns the job with a region, also if the region has another path in this mount namespace."""
    jobs = machine.get("jobs") or []
    for job in jobs:
        if job.get("path") == region:
            return dict(job)
    for job in jobs:
        try:
            if os.path.samefile(str(job.get("path")), region):
                return dict(job)
        except OSError:
            continue
    return None


def own_region() -> Optional[str]:
    """Returns the path of the region that the library uses in this process; None if it is in no job."""
    placed = _ROOT_FOLDER + "/job"  # where containers and Slurm's tasks have it, whatever the environment
    if os.path.isdir(placed):
        return placed + "/region"
    if os.path.lexists(placed):
        return placed
    if ruled():  # then only one variable counts, and only if it names a run of this user
        run = os.environ.get("RATION_REGION", "")
        return run if re.fullmatch(rf"{_ROOT_FOLDER}/user-{os.getuid()}-[^/]+/region", run) else users_region()
    for name in ("RATION_REGION", "CUDA_DEVICE_MEMORY_SHARED_CACHE"):
        if os.environ.get(name):
            return os.environ[name]
    return users_region() if os.path.lexists(users_region()) else None


def users_region() -> str:
    """Returns the path of the region of all programs of this user under a policy, which need not exist."""
    return f"{_ROOT_FOLDER}/user-{os.getuid()}/region"


def ruled() -> bool:
    """Reports whether a policy puts all programs of this user into one job."""
    if os.getuid() == 0 or not os.path.lexists(_IN_FORCE):
        return False
    try:
        return os.lstat(f"{_ROOT_FOLDER}/user-{os.getuid()}/exempt").st_uid != os.getuid()
    except OSError:
        return True


def read_ration() -> dict[str, Any]:
    """Returns what the policy gives this user, as in ration policy show --json."""
    command = shutil.which("ration")
    if command is None:
        raise NotAvailable("there is no command ration in PATH, which knows your ration (install ration)")
    users = _run([command, "policy", "show", str(os.getuid()), "--json"]).get("users")
    if not isinstance(users, list) or len(users) != 1 or not isinstance(users[0], dict):
        raise NotAvailable("ration policy show gave an answer that this package does not understand (are both of one version?)")
    if users[0].get("error"):
        raise Error(f"your ration is not known: {users[0]['error']}")
    return dict(users[0])


def agent_sockets() -> list[str]:
    """Returns the sockets of root's agent and of this user's, by the rules of the commands."""
    folder = os.environ.get("RATION_DIR")
    if folder:
        return [folder + "/agent.sock"]
    root = _ROOT_FOLDER + "/agent.sock"
    if os.geteuid() == 0:
        return [root]
    sockets = [root, f"/tmp/ration-{os.geteuid()}/agent.sock"]
    home = os.environ.get("HOME", "")  # for users whose folder in /tmp another user has made
    return [*sockets, home + "/.local/state/ration/agent.sock"] if home.startswith("/") else sockets


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("agent", timeout=_AGENT_SECONDS)
        self.path = path

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(_AGENT_SECONDS)
            sock.connect(self.path)
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _believe(struct.unpack("3i", credentials)[1])
        except BaseException:
            sock.close()
            raise
        self.sock = sock


def _believe(uid: int) -> None:
    """Another user may have made a socket there, and would tell us what that user likes."""
    if uid not in (0, os.geteuid()):
        raise PermissionError("it is another user's")


def _ask_agent(path: str) -> dict[str, Any]:
    is_now = os.lstat(path)
    if not stat.S_ISSOCK(is_now.st_mode):
        raise OSError("it is no socket")
    _believe(is_now.st_uid)
    connection = _Connection(path)
    try:
        connection.request("GET", "/v1/machine")
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"it says {answer.status} {answer.reason}")
        return _decode(answer.read(_MAX_ANSWER))
    finally:
        connection.close()


def _run(command: list[str]) -> dict[str, Any]:
    words = "ration " + " ".join(command[1:])
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"{words} has not answered for {_COMMAND_SECONDS:.0f} s (try ration doctor)") from None
    except OSError as e:
        raise NotAvailable(f"starting {words}: {e}") from e
    try:
        return _decode(done.stdout)  # status 3 is that one of the jobs could not be read
    except ValueError as e:
        said = done.stderr.decode(errors="replace").strip() or str(e)
        raise NotAvailable(f"{words} ended with status {done.returncode}: {said}") from None


def _decode(text: bytes) -> dict[str, Any]:
    machine = json.loads(text)
    if not isinstance(machine, dict):
        raise ValueError("the answer is not a machine (is it of another version?)")
    return machine
