# SPDX-License-Identifier: Apache-2.0
"""An instance with vGPUs of each kind through what can be done to it."""

from __future__ import annotations

from nova_gpu.core.vgpu.vgpu import of_slot
from tests.functional import divided, mig, profiled, test_plain_functions, vgpu_operations
from tests.functional.base import Server
from tests.functional.divided import FIRST, SECOND, WHOLE, slots


class MediatedTest(
    vgpu_operations.Made, vgpu_operations.Operations, divided.DividedServersTestBase
):
    WHOLE = WHOLE
    MINE = slots(FIRST, 64, 0, 1)
    OTHER = slots(FIRST, 65, 0)
    BESIDE = slots(SECOND, 65, 0)

    def wanted(self) -> str:
        return self.of_type(64, 2)

    def other(self) -> str:
        return self.of_type(65)

    def reserved(self) -> int:
        return self.inventories()[64][1]


class TypedTest(vgpu_operations.Made, vgpu_operations.Operations, profiled.ProfiledServersTestBase):
    """Virtual functions with a type"""

    WHOLE = profiled.WHOLE
    MINE = profiled.slots(1155, *profiled.FIRST[:2])
    OTHER = profiled.slots(1147, profiled.FIRST[0])
    BESIDE = profiled.slots(1147, profiled.SECOND[0])

    def wanted(self) -> str:
        return self.of_type(1155, 2)

    def other(self) -> str:
        return self.of_type(1147)

    def reserved(self) -> int:
        return self.inventories()[1155][1]


class PlainTest(vgpu_operations.Operations, test_plain_functions.PlainServersTestBase):
    """Virtual functions as they are, of which nothing is made"""

    WHOLE = WHOLE
    MINE = test_plain_functions.slots(FIRST, 1, 2)
    OTHER = test_plain_functions.slots(FIRST, 1)
    BESIDE = test_plain_functions.slots(FIRST, 3)

    def wanted(self) -> str:
        return self.flavor(**test_plain_functions.FLAVOR | {"vgpus": "= 2"})

    def other(self) -> str:
        return self.flavor(**test_plain_functions.FLAVOR)

    def reserved(self) -> int:
        return self.vgpus()[1]

    def assertVGPUs(self, server: Server, expected: list[str], host: str = "host1") -> None:
        self.assertFunctions(server, [each.partition("/")[0] for each in expected], host)

    def assertMade(self, count: int, host: str = "host1") -> None:
        pass

    assertDone = assertMade


class MIGTest(vgpu_operations.Operations, mig.MIGServersTestBase):
    """MIG instances, of which nothing is made either; their guests are containers"""

    WHOLE = mig.WHOLE
    MINE = mig.slots(mig.FIRST, mig.SMALL, 9, 10)
    OTHER = mig.slots(mig.FIRST, mig.LARGE, 1)
    BESIDE = mig.slots(mig.FIRST, mig.LARGE, 1)

    def wanted(self) -> str:
        return self.of_type(mig.SMALL, 2)

    def other(self) -> str:
        return self.of_type(mig.LARGE)

    def reserved(self) -> int:
        return self.vgpus()[1]

    def assertVGPUs(self, server: Server, expected: list[str], host: str = "host1") -> None:
        numbers = [of_slot(int(each.rpartition("/")[2])) for each in expected]
        nodes = [node for each in numbers for node in mig.nodes_of(0, *each)]
        self.assertInstances(server, expected, nodes, host)

    def assertMade(self, count: int, host: str = "host1") -> None:
        pass

    assertDone = assertMade

    def _rescue(self) -> None:
        said = self.refused({"rescue": {}}, self.server)
        self.assertIn("a container is not started from another disk", said[0])

    def test_what_is_refused(self) -> None:
        said = self.refused({"suspend": None}, self.server)
        self.assertIn("the state of a container cannot be saved", said[0])
        self.start_host("host2")
        live = {"os-migrateLive": {"host": "host2", "block_migration": "auto"}}
        self.assertIn("migrate the instance cold", self.refused(live, self.server)[0])
        self.assertMine()
