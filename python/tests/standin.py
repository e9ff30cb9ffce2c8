"""A machine with two stand-in GPUs, for tests: its jobs and its agent are in a folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Callable, Optional

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(PACKAGE)
RATION = os.path.join(ROOT, "bin", "ration")
DRIVER = os.path.join(ROOT, "internal", "embedded", "files")
GIB = 1 << 30


class Machine:
    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="ration-python-")
        self.started: list[subprocess.Popen[str]] = []
        # The driver is also that of the commands and of the agent, as on a machine with GPUs.
        self.env = {
            "PATH": f"{os.path.dirname(RATION)}:{DRIVER}:{os.environ['PATH']}",
            "PYTHONPATH": PACKAGE,
            "HOME": self.folder,
            "RATION_DIR": os.path.join(self.folder, "jobs"),
            "LD_LIBRARY_PATH": DRIVER,
            "FAKEGPU": "h200x2",
            "FAKEGPU_STATE": os.path.join(self.folder, "machine"),
            "FAKEGPU_QUIET": "1",
        }
        os.mkdir(self.env["RATION_DIR"], 0o700)

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self.folder)

    def python(self, code: str, *job: str, env: Optional[dict[str, str]] = None) -> str:
        """Runs Python code, in a job if flags of ration run are given, and returns what it prints."""
        command = [sys.executable, "-c", code]
        if job:
            command = [RATION, "run", *job, "--", *command]
        done = subprocess.run(command, env={**self.env, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        return done.stdout.strip()

    def start(self, *command: str, env: Optional[dict[str, str]] = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, env={**self.env, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(process)
        return process

    def hold(self, size: str, *job: str, env: Optional[dict[str, str]] = None) -> subprocess.Popen[str]:
        """Starts a program that holds memory, in a job, and returns when it has it."""
        process = self.start(RATION, "run", *job, "--", os.path.join(DRIVER, "fake-train"), "--hold", size, env=env)
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "holding" in line:
                return process
        raise AssertionError("fake-train holds nothing: " + said)

    def agent(self) -> str:
        """Starts an agent and returns its socket."""
        socket = os.path.join(self.env["RATION_DIR"], "agent.sock")
        self.start(RATION, "agent")
        until(lambda: os.path.exists(socket), "there is an agent")
        return socket


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"not in a minute: {what}")
        time.sleep(0.05)


def doc_blocks(page: str) -> dict[str, str]:
    """Returns the code blocks of a page of docs by their kind; there is one of each."""
    with open(os.path.join(ROOT, "docs", page)) as f:
        found = re.findall(r"(?ms)^```(.+?)\n(.*?)\n```$", f.read())
    assert len(dict(found)) == len(found), found
    return dict(found)
