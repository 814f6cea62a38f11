# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import refusal_texts


class WhyTest(unittest.TestCase):
    def why(self, action: str, container: bool | None = None, whole: bool = True) -> list[str]:
        return list(refusal_texts.why(action, container=container, whole=whole))

    def test_of_a_guest_of_either_kind(self) -> None:
        """Each says of which it speaks where that is not known."""
        container, vm = self.why("suspend")
        self.assertTrue(container.startswith("in a container: the state of a container"))
        self.assertTrue(vm.startswith("in a VM: the state of the guest's GPUs"))
        self.assertEqual([refusal_texts.SUSPEND_GPUS], self.why("suspend", container=False))
        self.assertEqual([], self.why("rescue", container=False))

    def test_of_whole_cards_and_of_parts(self) -> None:
        whole, parts = (self.why("live-migration", False, each)[0] for each in (True, False))
        self.assertIn("The state of a passed through GPU", whole)
        self.assertIn("A running guest with vGPUs moves only where", parts)

    def test_where_gpus_are_looked_for(self) -> None:
        for action, said in (("unshelve", "no host has room"), ("start", "openstack gpu start")):
            (found,) = self.why(action)
            self.assertTrue(found.startswith("most often: "))
            self.assertIn(said, found)

    def test_an_instance_without_gpus(self) -> None:
        self.assertEqual([], list(refusal_texts.why_without_gpus("start")))
        (found,) = refusal_texts.why_without_gpus("resize")
        self.assertIn("to a flavor with GPUs", found)
