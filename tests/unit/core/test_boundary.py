# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import boundary


class CrossedTest(unittest.TestCase):
    def test_any_exception_is_a_failure_with_its_text(self) -> None:
        for error in (KeyError("generation"), ZeroDivisionError("by a bug"), StopIteration()):
            with (
                self.subTest(repr(error)),
                self.assertRaises(boundary.Failure) as raised,
                boundary.crossed(),
            ):
                raise error
            self.assertIs(error, raised.exception.error)
            self.assertIs(error, raised.exception.__cause__)
            self.assertEqual(str(error), str(raised.exception))

    def test_first_line(self) -> None:
        for error, line in (
            (OSError(" remote error\n[stack]\n"), "remote error"),
            (OSError("\n"), "OSError"),
            (StopIteration(), "StopIteration"),
        ):
            with self.subTest(repr(error)):
                self.assertEqual(line, boundary.Failure(error).first_line)

    def test_what_the_caller_catches_passes(self) -> None:
        with self.assertRaises(KeyError), boundary.crossed(ValueError, LookupError):
            raise KeyError("gone")

    def test_what_ends_the_process_passes(self) -> None:
        with self.assertRaises(SystemExit), boundary.crossed():
            raise SystemExit(1)

    def test_its_class_and_stack_are_in_the_debug_log(self) -> None:
        with (
            self.assertLogs(boundary.LOG, "DEBUG") as log,
            self.assertRaises(boundary.Failure),
            boundary.crossed(),
        ):
            raise KeyError("generation")
        self.assertIn("KeyError: 'generation'", log.output[0])
