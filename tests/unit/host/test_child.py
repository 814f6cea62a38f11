# SPDX-License-Identifier: Apache-2.0
import sys

from oslotest import base

from nova_gpu.host import child


class TestRun(base.BaseTestCase):
    def run_python(self, source: str, timeout_s: float = 60) -> bytes:
        return child.run([sys.executable, "-I", "-c", source], timeout_s)

    def test_what_it_printed(self) -> None:
        self.assertEqual(b"7\n", self.run_python("print(7)"))

    def test_what_it_printed_before_it_hung(self) -> None:
        source = "import time; print('here', flush=True); time.sleep(300)"
        error = self.assertRaises(child.TimedOut, self.run_python, source, 2)
        self.assertEqual(b"here\n", error.output)
        self.assertEqual("did not answer within 2 s", str(error))
        self.assertIsNotNone(error.process.poll())

    def test_failure(self) -> None:
        error = self.assertRaises(child.Failed, self.run_python, "raise SystemExit('no way')")
        self.assertEqual("ended with 1: no way", str(error))
