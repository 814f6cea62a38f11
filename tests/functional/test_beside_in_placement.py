# SPDX-License-Identifier: Apache-2.0
"""GPUs beside network functions that Placement counts, so that the scheduler says which."""

from __future__ import annotations

from tests.functional import test_beside
from tests.functional.test_beside import BESIDE

_FUNCTION = "CUSTOM_PCI_8086_1515"


class InPlacementTest(test_beside.BesideTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(report_in_placement=True, group="pci")
        self.flags(pci_in_placement=True, group="filter_scheduler")
        self.start_host()

    def test_beside_what_the_scheduler_chose(self) -> None:
        pair = self.boot(self.near(gpus=2))
        self.assertBeside(pair)
        address = f"0000:{self.bus(pair)[2:]}:00.0"
        # Nova's libvirt of the tests lists addresses in capitals.
        providers = {p["name"].lower(): p["uuid"] for p in self._get_all_providers()}
        counted = providers[f"host1_{address}"]
        self.assertEqual({_FUNCTION: 1}, self._get_provider_usages(counted))

        # It chooses without a look at GPUs, so that the function may be the same card's: then those
        # of its NUMA node are what is left.
        other = self.boot(self.near(gpus=2))
        near = {gpu for gpus in BESIDE.values() for gpu in gpus}
        self.assertEqual(near, {*self.rendered(pair), *self.rendered(other)})
        self.boot_refused(self.near())
        self.assertIn("1 of its 1 GPUs are on another NUMA node", self.log())
        preferring = self.boot(self.near(policy="preferred"))
        self.assertGPUs(preferring, test_beside.APART[:1])
