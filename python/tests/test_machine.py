"""The package on a machine with stand-in GPUs, with real jobs, commands and agents."""

from __future__ import annotations

import importlib.util
import os
import re
import threading
import time
import unittest

from .standin import GIB, RATION, Machine, doc_blocks, until

STATUS = "import ration; s = ration.status(); j = s.job; print(j and (j.name, j.state, [(d.number, d.limit, d.held) for d in j.devices][:1]), [(g.number, g.name) for g in s.gpus], s.source)"


@unittest.skipUnless(os.path.exists(RATION), "bin/ration is not built (make all)")
class OnAMachine(unittest.TestCase):
    def setUp(self) -> None:
        self.machine = Machine()
        self.addCleanup(self.machine.close)

    def test_status_by_the_command(self) -> None:
        said = self.machine.python(STATUS, "--mem", "4g", "--name", "train")
        self.assertEqual(said, f"('train', 'starting', [(0, {4 * GIB}, 0)]) [(0, 'NVIDIA H200'), (1, 'NVIDIA H200')] {RATION}")

    def test_status_by_the_agent(self) -> None:
        socket = self.machine.agent()
        self.machine.hold("1g", "--mem", "4g", "--name", "train")
        said = self.machine.python(STATUS, "--join", "--name", "train")
        self.assertRegex(said, rf"^\('train', 'running', \[\(0, {4 * GIB}, 16\d{{8}}\)\]\) \[\(0, .* {socket}$")

    def test_status_without_a_driver(self) -> None:
        # The stand-in is only the job's: the agent does not see it.
        self.machine.env["LD_LIBRARY_PATH"] = ""
        self.machine.agent()
        said = self.machine.python("import ration; print(ration.status())", "--fake-gpu", "h200", "--mem", "4g")
        self.assertRegex(said, r"^Job .*: starting\nGPU +HELD +LIMIT +PEAK +CAN GET +GPU USED\n +0 +0 B +4 GiB +0 B +4 GiB +-$")

    def test_status_outside(self) -> None:
        said = self.machine.python("import ration; s = ration.status(); print(s.job, len(s.gpus)); print(s)")
        self.assertRegex(said, r"^None 2\nThis process is in no job of ration\.\n(.*\n){2}  1 .* of 140 GiB$")

    def test_a_job_that_is_gone(self) -> None:
        said = self.machine.python("import ration\ntry: ration.status()\nexcept ration.Error as e: print(e)", env={"RATION_REGION": self.machine.folder + "/jobs/gone/region"})
        self.assertRegex(said, r"^the job of this process cannot be read: .* does not list .*/gone/region \(has it ended")

    def test_nothing_answers(self) -> None:
        said = self.machine.python("import ration\ntry: ration.status()\nexcept ration.NotAvailable as e: print(e)", env={"PATH": "/nowhere"})
        self.assertEqual(said, "there is no command ration in PATH (install ration, or start ration agent)")

    def test_the_command_fails(self) -> None:
        said = self.machine.python("import ration\ntry: ration.status()\nexcept ration.NotAvailable as e: print(e)", env={"RATION_DIR": RATION})
        self.assertRegex(said, r"^ration ps --json ended with status \d: ration: ")

    def test_wait_that_ends_at_once(self) -> None:
        said = self.machine.python("import ration; d = ration.wait_for('3g', timeout=0); print(d.number, d.free)", "--mem", "4g")
        self.assertEqual(said, f"0 {4 * GIB}")

    def test_wait_for_too_much(self) -> None:
        wait = "import ration\ntry: ration.wait_for('5g')\nexcept ration.TooLarge as e: print(e)"
        self.assertRegex(self.machine.python(wait, "--mem", "4g"), r"^5 GiB is more than this job can ever have on one GPU, which is 4 GiB \(")
        self.assertRegex(self.machine.python(wait.replace("5g", "1t")), r"^1 TiB is more than .*, which is 140 GiB \(")

    def test_wait_in_vain(self) -> None:
        self.machine.hold("3g", "--mem", "4g", "--name", "train")
        wait = "import ration\ntry: ration.wait_for('2g', timeout='0.1s', device=0)\nexcept TimeoutError as e: print(e)"
        self.assertRegex(self.machine.python(wait, "--join", "--name", "train"), r"^there was no room for 2 GiB on GPU 0 in time: this job can get \d+ MiB \(")

    def test_wait_for_another_process(self) -> None:
        holder = self.machine.hold("3g", "--mem", "4g", "--name", "train")
        waiter = "import ration, time; t = time.monotonic(); d = ration.wait_for('2g', timeout='1m', device=0); print(d.number, d.held, time.monotonic() - t > 0.4)"
        end = threading.Timer(1, holder.terminate)
        end.start()
        self.addCleanup(end.join)
        self.assertEqual(self.machine.python(waiter, "--join", "--name", "train"), "0 0 True")

    def test_wait_for_a_full_gpu(self) -> None:
        # The limit has room, and the GPU has not: another job holds 100 of its 140 GiB.
        self.machine.hold("100g", "--mem", "120g", "--name", "other")
        wait = "import ration\nprint(ration.wait_for('60g', timeout=0).number)\ntry: ration.wait_for('60g', timeout=0, device=0)\nexcept ration.WaitTimeout: print('full')"
        self.assertEqual(self.machine.python(wait, "--mem", "80g"), "1\nfull")

    def test_wait_for_a_visible_gpu(self) -> None:
        self.machine.hold("100g", "--mem", "1=120g", "--name", "other", env={"CUDA_VISIBLE_DEVICES": "1"})
        wait = "import ration\nprint([d.number for d in ration.status().devices()])\ntry: ration.wait_for('60g', timeout=0)\nexcept ration.WaitTimeout as e: print(e)"
        said = self.machine.python(wait, "--mem", "80g", env={"CUDA_VISIBLE_DEVICES": "1"})
        self.assertRegex(said, r"^\[1\]\nthere was no room for 60 GiB on GPU 1 in time")

    def test_magic(self) -> None:
        if importlib.util.find_spec("IPython") is None:
            self.skipTest("IPython is not installed")
        session = "from IPython.core.interactiveshell import InteractiveShell; i = InteractiveShell.instance(); i.run_line_magic('load_ext', 'ration'); i.run_line_magic('ration', ''); i.run_line_magic('ration', 'wait 1g 1s'); i.run_line_magic('ration', 'what')"
        said = self.machine.python(session, "--mem", "4g", "--name", "notebook")
        self.assertEqual(said.count("Job notebook: starting"), 2, said)
        self.assertIn("%ration wait 20g 10m", said)

    def test_the_page(self) -> None:
        blocks = doc_blocks("python.md")
        self.machine.env["FAKEGPU"] = "h200"
        self.machine.hold("1g", "--mem", "4g", "--name", "train")
        self.assertEqual(self.machine.python(blocks["python"], "--join", "--name", "train"), blocks["text python"])
        magics = re.findall(r"(?m)^%(\S+) ?(.*)$", blocks["ipython"])
        self.assertEqual([name for name, _ in magics], ["load_ext", "ration", "ration"])

    def test_the_agent_dies(self) -> None:
        socket = self.machine.agent()
        until(lambda: self.machine.python(STATUS).endswith(socket), "the agent answers")
        self.machine.started[-1].kill()
        self.machine.started[-1].wait()
        began = time.monotonic()
        self.assertTrue(self.machine.python(STATUS).endswith(RATION))
        self.assertLess(time.monotonic() - began, 30)
