"""What scripts/test-jupyterhub does with a hub on this machine: it uses the servers of two users, and their kernels."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from typing import Any, Callable

from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

HUB = "http://127.0.0.1:8000"
TOKEN = {"Authorization": "token secret-of-the-test"}
GIB = 1 << 30
passed = 0

# What a framework does: the first call takes a context, and the memory stays with the kernel.
ALLOCATE = """
import ctypes
cuda, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
print([cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size << 30)) for size in (%s)])
"""


def ask(method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(HUB + path, data, TOKEN, method=method), timeout=60) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def ok(what: str) -> None:
    global passed
    passed += 1
    print("ok   ", what, flush=True)


def until(what: str, true: Callable[[], Any]) -> None:
    end = time.monotonic() + 90
    while True:
        try:
            if true():
                ok(what)
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        if time.monotonic() > end:
            sys.exit(f"FAIL  {what}")
        time.sleep(0.2)


def check(what: str, got: Any, want: Any) -> None:
    if got != want:
        sys.exit(f"FAIL  {what}: {got!r}, want {want!r}")
    ok(what)


def start(user: str) -> None:
    ask("POST", f"/hub/api/users/{user}/server")
    until(f"the server of {user} has started", lambda: ask("GET", f"/hub/api/users/{user}")["servers"].get("", {}).get("ready"))


def jobs() -> dict[str, tuple[str, int, int]]:
    """Returns the jobs that have not ended, for root: state, limit and what they hold."""
    machine = json.loads(subprocess.check_output(["ration", "ps", "--json"]))
    return {f"{j['owner']}/{j['job']}": (j["state"], j["devices"][0]["limit"], j["devices"][0]["used"]) for j in machine["jobs"]}


async def execute(user: str, kernel: str, code: str) -> str:
    """Runs code in a kernel, as a page does, and returns what it prints."""
    socket = await websocket_connect(HTTPRequest(f"{HUB.replace('http', 'ws')}/user/{user}/api/kernels/{kernel}/channels", headers=TOKEN))
    own = uuid.uuid4().hex
    await socket.write_message(json.dumps({
        "channel": "shell",
        "header": {"msg_id": own, "msg_type": "execute_request", "session": own, "username": user, "version": "5.3"},
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False},
    }))
    said = ""
    while (text := await socket.read_message()) is not None:
        message = json.loads(text)
        if message["parent_header"].get("msg_id") != own:
            continue
        content = message["content"]
        if message["msg_type"] == "stream":
            said += content["text"]
        elif message["msg_type"] == "error":
            said += f"{content['ename']}: {content['evalue']}"
        elif message["msg_type"] == "status" and content["execution_state"] == "idle":
            break
    socket.close()
    return said.strip()


def run(user: str, kernel: str, code: str) -> str:
    return asyncio.run(asyncio.wait_for(execute(user, kernel, code), 60))


def main() -> None:
    until("the hub answers", lambda: ask("GET", "/hub/api/"))
    for user in ("anna", "ben"):
        start(user)
    check("each user has a job", {name: limit for name, (_, limit, _) in jobs().items()}, {"anna/notebook": 40 * GIB, "ben/notebook": 10 * GIB})

    kernels = {user: ask("POST", f"/user/{user}/api/kernels", {})["id"] for user in ("anna", "ben")}
    status = "import ration; j = ration.status().job; print(j.name, j.owner, j.devices[0].limit >> 30)"
    check("the kernel of anna knows its ration", run("anna", kernels["anna"], status), "notebook anna 40")
    magic = run("ben", kernels["ben"], "%load_ext ration\n%ration")
    check("%ration in the kernel of ben", [magic.split(":")[0], "10 GiB" in magic], ["Job notebook", True])
    check("ben gets 5 of 10 GiB, and not 6 more", run("ben", kernels["ben"], ALLOCATE % "5, 6,"), "[0, 2]")
    check("anna gets 11 GiB", run("anna", kernels["anna"], ALLOCATE % "11,"), "[0]")
    check("a wait in vain", run("ben", kernels["ben"], "%ration wait 6g 1s")[:46], "WaitTimeout: there was no room for 6 GiB on GP")
    check("what they hold", {name: used >> 30 for name, (_, _, used) in jobs().items()}, {"anna/notebook": 11, "ben/notebook": 5})

    until("idle kernels have ended, and their memory is free", lambda: {used for _, _, used in jobs().values()} == {0})
    until("no kernel is left", lambda: [ask("GET", f"/user/{user}/api/kernels") for user in kernels] == [[], []])

    ask("DELETE", "/hub/api/users/ben/server")
    until("ben's job has ended", lambda: list(jobs()) == ["anna/notebook"])
    start("ben")
    check("ben has a ration again", jobs()["ben/notebook"][1], 10 * GIB)
    print(f"test-jupyterhub: {passed} tests passed")


if __name__ == "__main__":
    main()
