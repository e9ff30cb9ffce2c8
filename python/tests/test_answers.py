"""What the package does with answers that are wrong, and with arguments."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import unittest
import zipfile
from typing import Any
from unittest import mock

import build_wheel
import ration
from ration import _machine, _magic, _wait
from ration._sizes import parse_seconds

from .standin import GIB, PACKAGE, doc_blocks

EMPTY: dict[str, Any] = {"devices": [], "jobs": []}


def job(path: str, **device: Any) -> dict[str, Any]:
    return {"job": "j", "path": path, "owner": "u", "state": "running", "devices": [{"device": 0, "limited": False, "limit": 0, "used": 0, "peak": 0, "refused": 0, **device}]}


class FakeAgent(unittest.TestCase):
    """A socket that answers with what a test likes, and a command that says that there is nothing."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="ration-python-")
        self.socket = self.folder + "/agent.sock"
        self.command = self.folder + "/ration"
        self.addCleanup(shutil.rmtree, self.folder)
        self.says(json.dumps(EMPTY))
        environ = mock.patch.dict(os.environ, {"RATION_DIR": self.folder, "PATH": self.folder + ":/usr/bin:/bin"})
        environ.start()
        self.addCleanup(environ.stop)
        seconds = mock.patch.object(_machine, "_AGENT_SECONDS", 0.3)
        seconds.start()
        self.addCleanup(seconds.stop)
        os.environ.pop("RATION_REGION", None)
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)

    def says(self, text: str, status: int = 0) -> None:
        with open(self.command, "w") as f:
            f.write(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
        os.chmod(self.command, 0o755)

    def serve(self, answer: bytes) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.recv(1000)
                if answer:
                    self.request.sendall(answer)
                else:
                    self.request.recv(1)  # until the client gives up

        server = socketserver.ThreadingUnixStreamServer(self.socket, Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)

    def serve_json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.serve(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def test_a_good_answer(self) -> None:
        self.serve_json(EMPTY)
        self.assertEqual(ration.status(), ration.Status(None, [], self.socket))

    def test_wrong_answers(self) -> None:
        for answer in (b"", b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[1]", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"garbage\r\n\r\n"):
            with self.subTest(answer=answer):
                self.serve(answer)
                self.assertEqual(ration.status().source, self.command)
                os.unlink(self.socket)

    def test_no_socket(self) -> None:
        with open(self.socket, "w"):
            pass
        self.assertEqual(ration.status().source, self.command)
        os.unlink(self.command)
        with self.assertRaisesRegex(ration.NotAvailable, "the agent at .* did not answer: it is no socket; there is no command ration"):
            ration.status()

    @unittest.skipUnless(os.geteuid() == 0, "only root can give a socket to another user")
    def test_another_users_socket(self) -> None:
        self.serve_json({"devices": [], "jobs": [job("/evil")]})
        os.chown(self.socket, 65534, 65534)
        self.assertEqual(ration.status().source, self.command)

    def test_another_users_process(self) -> None:
        self.serve_json(EMPTY)
        with mock.patch("ration._machine.struct.unpack", return_value=(1, 65534, 65534)):
            self.assertEqual(ration.status().source, self.command)

    def test_unknown_forms(self) -> None:
        region = self.folder + "/region"
        for value in ({"devices": [{}], "jobs": []}, {"devices": 7}, {"devices": [], "jobs": [{"path": region}]}, {"jobs": [job(region, limit="x", limited=True)]}):
            with self.subTest(value=value), mock.patch.dict(os.environ, {"RATION_REGION": region}):
                self.says(json.dumps(value))
                with self.assertRaisesRegex(ration.Error, "does not understand"):
                    ration.status()

    def test_a_job_with_an_error(self) -> None:
        self.says(json.dumps({"jobs": [{**job("/r"), "error": "the file was cut short"}]}), 3)
        with mock.patch.dict(os.environ, {"RATION_REGION": "/r"}), self.assertRaisesRegex(ration.Error, "cut short"):
            ration.status()

    def test_no_limit_and_no_driver(self) -> None:
        self.says(json.dumps({"jobs": [job("/r")]}))
        with mock.patch.dict(os.environ, {"RATION_REGION": "/r"}):
            self.assertIn("any", str(ration.status()))
            with self.assertRaisesRegex(ration.Error, "what is free is not known"):
                ration.wait_for(1)
            with self.assertRaisesRegex(ration.Error, "this process has no GPU 7"):
                ration.wait_for(1, device=7)

    def test_a_later_version(self) -> None:
        self.says(json.dumps({"jobs": [{**job("/r", limited=True, limit=GIB, new=1), "state": "asleep", "created_at": "2026-01-31T15:04:05.123456789Z", "idle_since": "2026-01-31T15:04:05+02:00"}], "new": {}}))
        with mock.patch.dict(os.environ, {"RATION_REGION": "/r"}):
            j = ration.status().job
        assert j is not None and j.created_at is not None and j.idle_since is not None
        self.assertEqual((j.state, j.created_at.isoformat(), j.idle_since.isoformat()), ("asleep", "2026-01-31T15:04:05.123456+00:00", "2026-01-31T15:04:05+02:00"))

    def test_visible_devices(self) -> None:
        """As fakegpu/test/start.c has it of the driver."""
        gpus = [ration.GPU(n, f"GPU-{uuid}", "H200", GIB, 0, 0) for n, uuid in enumerate(("525a6879-a", "52161616-b", "77777777-c"))]
        part = ration.Job("j", "/r", "u", "running", [ration.Device(g.number, g.uuid, GIB, 0, 0, 0, g) for g in gpus[1:]])
        placed = dataclasses.replace(part, placed="GPU 0 was full")
        later = dataclasses.replace(part, placed=None)
        unknown = ration.Job("j", "/r", "u", "running", [ration.Device(n, "", GIB, 0, 0, 0) for n in range(3)])
        for visible, job, want in (
            (None, None, [0, 1, 2]),
            ("1", None, [1]),
            ("2,0", None, [2, 0]),
            (" 1 , 02", None, [1, 2]),
            ("0,7,1", None, [0]),
            ("0,,1", None, [0]),
            ("7,0", None, []),
            ("0,0", None, []),
            ("", None, []),
            ("-1", None, []),
            ("nonsense", None, []),
            ("GPU-", None, []),
            ("GPU-77777777-c", None, [2]),
            ("gpu-77", None, [2]),
            ("0,GPU-525a", None, []),
            ("GPU-52", None, []),  # could be either
            ("GPU-9,0", None, []),
            ("MIG-9", None, [0, 1, 2]),  # a part of one of them
            ("0,1", part, [1]),  # the job has nothing of the first
            ("0", placed, [1]),  # the job sees no other
            ("1,2", placed, [2]),
            ("GPU-77,0", placed, [2, 1]),
            ("GPU-525a", placed, []),
            ("0", later, [1, 2]),
        ):
            with self.subTest(visible=visible, job=job and job.placed):
                os.environ.pop("CUDA_VISIBLE_DEVICES", None)
                if visible is not None:
                    os.environ["CUDA_VISIBLE_DEVICES"] = visible
                self.assertEqual([d.number for d in ration.Status(job, gpus, "").devices()], want)
        for visible, want in (("1", [1]), ("GPU-5", [0, 1, 2])):
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
            self.assertEqual([d.number for d in ration.Status(unknown, [], "").devices()], want)
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        with self.assertRaisesRegex(ration.Error, "this process may use no GPU that is known here \\(CUDA_VISIBLE_DEVICES=-1\\)"):
            ration.wait_for(1)

    def test_wait_polls(self) -> None:
        full, empty = (ration.Status(ration.Job("j", "/r", "u", "running", [ration.Device(0, "", GIB, held, 0, 0)]), [], "") for held in (GIB, 0))
        with mock.patch.object(_wait, "status", side_effect=[full, full, empty]), mock.patch("ration._wait.time.sleep") as sleep:
            self.assertEqual(ration.wait_for("1g").held, 0)
        self.assertEqual(sleep.call_count, 2)


class Arguments(unittest.TestCase):
    def test_sizes(self) -> None:
        for text, size in {"20g": 20 * GIB, "512M": GIB // 2, "1.5GiB": GIB * 3 // 2, "7": 7, "7b": 7, "2kb": 2048, "0.5t": 512 * GIB}.items():
            self.assertEqual(ration.parse_size(text), size, text)
        self.assertEqual(ration.parse_size(9), 9)
        wrong: list[Any] = ["", "g", "1.5", "-1g", "1 g", "1e3", "1gg", "7ib", "lots", "١g", "1_0", -1, True, 1.5, None]
        for value in wrong:
            with self.assertRaisesRegex(ValueError, "is not a size", msg=repr(value)):
                ration.parse_size(value)

    def test_times(self) -> None:
        for text, seconds in {"30s": 30, "1.5m": 90, "2h": 7200, "5": 5}.items():
            self.assertEqual(parse_seconds(text), seconds)
        wrong: list[Any] = ["", "1d", "-1s", "s", -1, True, float("nan")]
        for value in wrong:
            with self.assertRaisesRegex(ValueError, "is not a time", msg=repr(value)):
                parse_seconds(value)

    def test_formatted(self) -> None:
        for size, text in {0: "0 B", 999: "999 B", GIB: "1 GiB", 1616904192: "1.51 GiB", 19 * GIB + 858993459: "19.8 GiB", 1000 * GIB: "0.98 TiB", 141 << 30: "141 GiB"}.items():
            self.assertEqual(ration.format_size(size), text)

    def test_sockets(self) -> None:
        with mock.patch("ration._machine.os.geteuid", return_value=7):
            for env, want in (
                ({"RATION_DIR": "/d"}, ["/d/agent.sock"]),
                ({}, ["/run/ration/agent.sock", "/tmp/ration-7/agent.sock"]),
                ({"HOME": "/h", "XDG_RUNTIME_DIR": "/x", "TMPDIR": "/t"}, ["/run/ration/agent.sock", "/tmp/ration-7/agent.sock", "/h/.local/state/ration/agent.sock"]),
            ):
                with mock.patch.dict(os.environ, env, clear=True):
                    self.assertEqual(_machine.agent_sockets(), want)

    def test_magic_says_how_to_use_it(self) -> None:
        registered: dict[str, Any] = {}
        ipython = mock.Mock(register_magic_function=lambda function, kind, name: registered.update({name: (kind, function)}))
        ration.load_ipython_extension(ipython)
        self.assertEqual(registered, {"ration": ("line", _magic.magic)})
        with mock.patch("builtins.print") as printed, mock.patch.object(_magic, "status", side_effect=ration.NotAvailable("none")):
            _magic.magic("")
            _magic.magic("wait")
        self.assertEqual([c.args[0][:12] for c in printed.call_args_list], ["ration: none", "%ration show"])

    def test_import_needs_nothing(self) -> None:
        code = f"import sys; sys.path.insert(0, {PACKAGE!r}); import ration; assert 'IPython' not in sys.modules"
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, env={"LC_ALL": "C"})


class Pages(unittest.TestCase):
    def test_jupyterhub(self) -> None:
        """The settings as JupyterHub reads them; make test-jupyterhub runs them."""
        c = mock.Mock()
        exec(compile(doc_blocks("jupyterhub.md")["python"], "jupyterhub.md", "exec"), {"c": c})
        for user, server, want in (("anna", "", ["notebook", "40g"]), ("ben", "", ["notebook", "10g"]), ("ben", "two", ["notebook-two", "10g"])):
            spawner = mock.Mock()
            spawner.user.name, spawner.name = user, server
            c.Spawner.pre_spawn_hook(spawner)
            self.assertEqual(spawner.cmd, ["ration", "run", "--name", want[0], "--mem", want[1], "--", "jupyterhub-singleuser"])


class Wheel(unittest.TestCase):
    def test_versions(self) -> None:
        for version, want in {"0.2.0": "0.2.0", "0.2.0-dev": "0.2.0.dev0", "0.2.0-dev.123+g0123abc.dirty": "0.2.0.dev123+g0123abc.dirty", "1.0.0+dirty": "1.0.0+dirty"}.items():
            self.assertEqual(build_wheel.python_version(version), want)
        for wrong in ("", "x", "1.0\n", "1.0/../x"):
            with self.assertRaises(ValueError):
                build_wheel.python_version(wrong)

    def test_same_bytes_and_usable(self) -> None:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            name = build_wheel.write(first, "0.2.0-dev.7+gabc")
            self.assertEqual(name, build_wheel.write(second, "0.2.0-dev.7+gabc"))
            self.assertEqual(name, "ration-0.2.0.dev7+gabc-py3-none-any.whl")
            path = os.path.join(first, name)
            with open(path, "rb") as a, open(os.path.join(second, name), "rb") as b:
                self.assertEqual(a.read(), b.read())
            with zipfile.ZipFile(path) as wheel:
                modules = {f for f in os.listdir(os.path.join(PACKAGE, "ration")) if f != "__pycache__"}
                self.assertEqual({n.split("/")[1] for n in wheel.namelist() if n.startswith("ration/")}, modules)
            subprocess.run([sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {path!r}); import ration; assert {path!r} in ration.__file__"], check=True)
            pip = [sys.executable, "-m", "pip"]
            if subprocess.run([*pip, "--version"], capture_output=True).returncode != 0:
                return  # of which only the check of the wheel's lists is missing
            target = os.path.join(second, "target")
            subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", "--no-index", "--root-user-action=ignore", "--target", target, path], check=True)
            subprocess.run([sys.executable, "-c", "import ration; print(ration.format_size(1))"], check=True, env={"PYTHONPATH": target}, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    unittest.main()
