# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import unittest

from nova_gpu.core import json_text, operation_refusals, printable

_INSTEAD = "\N{REPLACEMENT CHARACTER}"


class PrintableTest(unittest.TestCase):
    def test_what_is_seen(self) -> None:
        for text, shown in (
            ("train-3 \u00e4\u6f22", "train-3 \u00e4\u6f22"),
            ("a\r\n\tb\u00a0c\u3000d", "a   b c d"),
            ("\x1b[2K\x9b1m", f"{_INSTEAD}[2K{_INSTEAD}1m"),
            ("\u202eevil\u2066\u2028\udc80", f"{_INSTEAD}evil{_INSTEAD * 3}"),
        ):
            self.assertEqual(shown, printable.printable(text))

    def test_it_is_cut(self) -> None:
        self.assertEqual("a" * 255, printable.printable("a" * 255))
        self.assertEqual("a" * 252 + "...", printable.printable("a" * 256))
        self.assertEqual("aaaaa...", printable.printable("a" * 10**6, 8))

    def test_lines_stay_lines(self) -> None:
        long = "b" * 5000
        shown = printable.within({"a\x1b": ["1\n2\x07", (long, 3, None)]})
        self.assertEqual(
            {f"a{_INSTEAD}": [f"1\n2{_INSTEAD}", ("b" * 1997 + "...", 3, None)]}, shown
        )


_BEYOND = ("Infinity", "-Infinity", "NaN", "1e999", "-1e999", "1" + "0" * 400, str(2**64))


class ParseTest(unittest.TestCase):
    def test_what_json_says(self) -> None:
        for value in ({"a": [1, -2.5, None, True, "Infinity"]}, 2**64 - 1, -(2**63), 1e300):
            self.assertEqual(value, json_text.parse(json.dumps(value)))
        self.assertEqual([("a", 1)], json_text.parse('{"a": 1}', list))

    def test_numbers_that_are_none(self) -> None:
        for text in (*_BEYOND, "1" * 5000):
            for document in (text, f'{{"a": [{text}]}}'):
                with self.assertRaisesRegex(ValueError, "is not a JSON number of at most 64 bits"):
                    json_text.parse(document)

    def test_what_is_none(self) -> None:
        for text in ("", "{", b"\xff", "[" * 100_000):
            with self.assertRaises(ValueError):
                json_text.parse(text)


class WhyTest(unittest.TestCase):
    def why(self, action: str, container: bool | None = None, whole: bool = True) -> list[str]:
        return list(operation_refusals.why(action, container=container, whole=whole))

    def test_of_a_guest_of_either_kind(self) -> None:
        """Each says of which it speaks where that is not known."""
        container, vm = self.why("suspend")
        self.assertTrue(container.startswith("in a container: the state of a container"))
        self.assertTrue(vm.startswith("in a VM: the state of the guest's GPUs"))
        self.assertEqual([operation_refusals.SUSPEND_GPUS], self.why("suspend", container=False))
        self.assertEqual([], self.why("rescue", container=False))

    def test_of_whole_cards_of_parts_and_without(self) -> None:
        whole, parts = (
            self.why("live-migration", False, is_whole)[0] for is_whole in (True, False)
        )
        self.assertIn("The state of a passed through GPU", whole)
        self.assertIn("A running guest with vGPUs moves only where", parts)
        for action, text in (("unshelve", "no host has room"), ("start", "openstack gpu start")):
            (line,) = self.why(action)
            self.assertRegex(line, f"^most often: .*{text}")
        self.assertEqual([], list(operation_refusals.why_without_gpus("start")))
        self.assertIn("to a flavor with GPUs", *operation_refusals.why_without_gpus("resize"))
