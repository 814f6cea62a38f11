# SPDX-License-Identifier: Apache-2.0
"""What is read of a fleet before instances are chosen, its requests counted."""

from __future__ import annotations

import contextlib
import os
from typing import ClassVar

from osc_lib import exceptions

from nova_gpu.core import names
from osc_gpu import usage
from osc_gpu_fleet import move_commands, preemption
from tests.fixtures.bases import reading

# A full cloud in as many pages as 2,000 hosts and 16,000 servers are ([api]max_limit=1000), and how
# many requests there are next to these. With all of the hosts each command takes minutes, in which
# openstacksdk makes its servers.
_HOSTS, _PAGES, _MOST = int(os.environ.get("NOVA_GPU_FLEET_HOSTS", 20)), 2, 10


class ReadingTestCase(reading.ReadingTestCase):
    SPOT: ClassVar = {"gpus": "= 1", "gpu:preemptible": "60s", "gpu:on_stop": "release"}


class PreemptTest(ReadingTestCase):
    def test_what_an_image_asks_for_is_read(self) -> None:
        """Dedicated processors are other resources than the flavor's."""
        node = self.placement.add_host("host", vcpus=8)
        self.nova.add_node(node, "host")
        group = self.placement.add_group(node, 1)
        uuid = reading.new_uuid()
        self.nova.add_server(uuid, "host", self.spot)
        self.placement.allocate({node: {"MEMORY_MB": 512}, group: {names.RESOURCE_CLASS: 1}}, uuid)
        self.run_command(preemption.Preempt, "one", "--project", "p1")
        self.assertEqual(1, self.asked["/resource_providers/UUID/allocations"])


class LargeCloudTest(ReadingTestCase):
    """Hosts whose GPUs are all used, by eight servers each"""

    PAGE = _HOSTS // _PAGES

    def setUp(self) -> None:
        super().setUp()
        self.add_host("host0", self.spot, 8, total=8)
        names = [f"host{number}" for number in range(1, _HOSTS)]
        for name, (node, uuids) in zip(
            names, self.placement.copy_host("host0", names), strict=True
        ):
            self.nova.add_node(node, name)
            for uuid in uuids:
                self.nova.add_server(uuid, name, self.spot)

    def test_a_request_for_each_page(self) -> None:
        for command, *arguments in (
            (usage.ShowUsage,),
            (preemption.Preempt, "two", "--project", "p1"),
            (preemption.Preempt, "--project", "p1"),
            (move_commands.MakeRoom, "two"),
            (move_commands.Drain, "host7"),
            (move_commands.Defragment, "--flavor", "two"),
        ):
            with contextlib.suppress(exceptions.CommandError):  # none of its instances may move
                self.run_command(command, *arguments)
            self.assertEqual((_PAGES, 8 * _PAGES), self.pages())
            self.assertLessEqual(self.asked.total() - 9 * _PAGES, _MOST, self.asked)
