# SPDX-License-Identifier: Apache-2.0
"""What an operator does after a move has failed, and what the instance has then.

The tables name each step of Nova's that fails; what Nova's log and its documentation say to do next
is done.
"""

from __future__ import annotations

from nova.compute import task_states

from tests.fixtures import economy
from tests.functional import base, divided, kvm
from tests.functional.failing_steps import DRIVER, GUEST, MANAGER, RPC, Hosts, Step

GUEST_RUNS = Step(f"{DRIVER}._create_guest_with_network", after=True)
BEFORE_GUEST = Step(f"{MANAGER}._update_volume_attachments")
AFTER_GUEST = Step(f"{MANAGER}._complete_volume_attachments")
UNSHELVED = Step(f"{MANAGER}._update_instance_after_spawn")
SOURCE = Step(f"{DRIVER}.migrate_disk_and_power_off", after=True)
CAST = Step(f"{RPC}.finish_resize")

# The steps of a resize, and whether the instance has its new flavor after that
RESIZE = {
    SOURCE: False,
    CAST: False,
    BEFORE_GUEST: True,
    GUEST: False,
    GUEST_RUNS: False,
    AFTER_GUEST: True,
}
# And of a revert, with the host that the instance is on
REVERT = {
    Step(f"{DRIVER}.destroy"): "host2",
    Step(f"{RPC}.finish_revert_resize"): "host2",
    Step(f"{MANAGER}._revert_allocation"): "host1",
    GUEST: "host1",
}


class RecoveriesTest(Hosts, kvm.KVMServersTestBase):
    def of(self, gpus: int) -> str:
        return self.gpu_flavor(gpus) if gpus else self.flavor()

    def assertHas(self, gpus: int, host: str) -> None:
        """That many of that host, everywhere the same ones, and nothing is counted elsewhere"""
        self.periods(2)
        got = self.recorded(self.server)
        self.assertEqual(gpus, len(got))
        self.assertGPUs(self.server, got, host)
        for name in self.hosts:
            used = gpus if name == host else 0
            self.assertInventory(used=used, reserved=0, host=name)

    def sweep(self) -> None:
        """An operator removes what stock Nova leaves at the source of a failed move."""
        self._delete_server(self.server)
        for name in self.hosts:
            for domain in self._domains(name):
                domain.undefine()
        self.periods(2)
        for name in self.hosts:
            self.assertInventory(host=name)

    def test_resize(self) -> None:
        for gpus, then, steps in (
            (1, 2, RESIZE),
            (0, 1, (CAST, GUEST, GUEST_RUNS)),
            (1, 0, (CAST, GUEST, AFTER_GUEST)),
            (2, 1, (GUEST,)),
        ):
            for step in steps:
                with self.subTest(gpus=gpus, then=then, step=str(step)):
                    self.server = self.boot(self.of(gpus), host="host1")
                    self.fails(step, resize={"flavorRef": self.of(then)})
                    self.hard_reboot()
                    self.assertHas(
                        then if RESIZE[step] else gpus, "host1" if step is SOURCE else "host2"
                    )
                    self.sweep()

    def test_revert(self) -> None:
        for step, host in REVERT.items():
            with self.subTest(step=str(step)):
                self.server = self.boot(self.of(1), host="host1")
                self._resize_server(self.server, self.of(2))
                self.fails(step, revertResize=None)
                self.hard_reboot()
                self.assertHas(2 if host == "host2" else 1, host)
                self.sweep()

    def test_confirm(self) -> None:
        self.server = self.boot(self.of(1), host="host1")
        self._resize_server(self.server, self.of(2))
        with self.on("host1"):
            self.fails(Step(f"{DRIVER}.confirm_migration"), confirmResize=None)
        self.hard_reboot()
        self.assertHas(2, "host2")
        self.sweep()

    def test_evacuation(self) -> None:
        for again in (True, False):
            with self.subTest(again=again):
                self.server = self.boot(self.of(1), host="host1")
                self.force_down("host1")
                self.fails(GUEST, evacuate={})
                if again:
                    self.act(evacuate={})
                    self.settles("ACTIVE")
                self.bring_back("host1")
                if not again:
                    self.hard_reboot()
                self.assertHas(1, "host2" if again else "host1")
                self.sweep()

    def test_unshelve(self) -> None:
        self.flags(shelved_offload_time=0)
        self.server = self.boot(self.of(1), host="host1")
        self._shelve_server(self.server)
        self.fails(GUEST, status="SHELVED_OFFLOADED", unshelve=None)
        self.assertEqual({}, self.allocated(self.server))
        self.act(unshelve=None)
        self.settles("ACTIVE")
        self.assertHas(1, self.host_of(self.server))
        self.sweep()

    def test_unshelve_when_its_guest_runs(self) -> None:
        """It has a host and its GPUs; an unshelve finds no image any more, as without GPUs."""
        self.flags(shelved_offload_time=0)
        self.server = self.boot(self.of(1), host="host1")
        self._shelve_server(self.server)
        self.fails(UNSHELVED, status="SHELVED_OFFLOADED", unshelve=None)
        self.act(unshelve=None)
        stays = {"status": "ERROR", "OS-EXT-STS:task_state": task_states.UNSHELVING}
        self._wait_for_server_parameter(self.server, stays)
        action = {"os-resetState": {"state": "active"}}
        self.admin_api.post_server_action(self.server["id"], action)
        self.settles("ACTIVE")
        self.assertHas(1, self.host_of(self.server))
        self.sweep()

    def test_domain_at_the_source(self) -> None:
        """It keeps its GPUs while it runs, or while Nova may yet need it."""
        self.server = self.boot(self.of(1), host="host1")
        before = self.rendered(self.server, "host1")
        self.fails(GUEST, resize={"flavorRef": self.of(2)})
        self.guest(self.server).create()
        self.period("host1")
        self.assertInventory(reserved=1, host="host1")
        self.guest(self.server).destroy()
        for task in (task_states.RESIZE_PREP, None):
            instance = self.instance(self.server)
            instance.task_state = task
            instance.save()
            self.assertEqual(before, self.rendered(self.server, "host1"))
            self.period("host1")
        self.assertEqual([], self.rendered(self.server, "host1"))
        self.assertInventory(host="host1")
        self.assertIn(before[0], self.recorded(self.boot(self.of(self.TOTAL), host="host1")))
        self.hard_reboot()
        self.assertEqual(1, len(self.recorded(self.server)))
        self.periods(2)  # a claim gets what the failed move had from then on

    def test_where_the_destination_has_none_free(self) -> None:
        """Nothing is counted for the instance, and its user reads what to do."""
        other = self.boot(self.of(self.TOTAL), host="host2")
        self.server = self.boot(self.of(1), host="host1")
        self.fails(GUEST, resize={"flavorRef": self.of(0)})
        (said,) = self.refused({"reboot": {"type": "HARD"}}, self.server)
        self.assertIn("the instance gave its GPUs back, and gets none now: 1 GPU asked", said)
        self.assertIn("start it when some are free", said)
        economy.wait_for_quiet(5)
        self.assertEqual(([], {}), (self.recorded(self.server), self.allocated(self.server)))
        self._delete_server(other)
        self.hard_reboot()
        self.assertHas(1, "host2")
        self.sweep()


class SameHostTest(Hosts, base.GPUServersTestBase):
    """What a failed resize on one host has claimed for the new flavor is free again."""

    HOSTS = ("host1",)

    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True)

    def test_resize(self) -> None:
        moves = [(1, 2, step) for step in RESIZE] + [(0, 1, GUEST), (2, 1, GUEST)]
        for gpus, then, step in moves:
            with self.subTest(gpus=gpus, then=then, step=str(step)):
                self.server = self.boot(self._of(gpus))
                self.fails(step, resize={"flavorRef": self._of(then)})
                self.hard_reboot()
                self.assertHas(then if RESIZE[step] else gpus)
                self._delete_server(self.server)

    def test_revert(self) -> None:
        """It is recovered with what its flavor asks for, whichever that is then."""
        for step in (
            Step(f"{RPC}.finish_revert_resize"),
            Step(f"{MANAGER}._revert_allocation"),
            GUEST,
        ):
            with self.subTest(str(step)):
                self.server = self.boot(self._of(1))
                self.act(resize={"flavorRef": self._of(2)})
                self.settles("VERIFY_RESIZE")
                self.fails(step, revertResize=None)
                self.hard_reboot()
                asked = self._show_server(self.server)["flavor"]["extra_specs"]["gpus"]
                self.assertHas(int(asked.removeprefix("= ")))
                self._delete_server(self.server)

    def test_allocation_that_is_not_given_back(self) -> None:
        """Of a resize that fails"""
        self.server = self.boot(self._of(2))
        with Step(f"{MANAGER}._revert_allocation").failing():
            self.fails(SOURCE, resize={"flavorRef": self._of(1)})
        self.hard_reboot()
        self.assertHas(2)

    def _of(self, gpus: int) -> str:
        return self.gpu_flavor(gpus) if gpus else self.flavor()

    def assertHas(self, gpus: int) -> None:
        """That many, and all others can be given to another"""
        self.periods(2)
        got = self.recorded(self.server)
        self.assertEqual(gpus, len(got))
        self.assertGPUs(self.server, got)
        self.assertInventory(used=gpus)
        other = self.boot(self.gpu_flavor(len(base.ALL) - gpus))
        self._delete_server(other)
        self.period()


class VGPURecoveriesTest(Hosts, divided.DividedServersTestBase):
    """What was made for the new flavor is removed, and what the old one asks for is made."""

    def test_resize(self) -> None:
        self.server = self.boot(self.flavor(vgpus="= 2", vgpu_type="nvidia-64"), host="host1")
        one = self.flavor(vgpus="= 1", vgpu_type="nvidia-64")
        other = self.flavor(vgpus="= 2", vgpu_type="nvidia-65")
        for flavor in (one, other, self.flavor()):
            source = self.host_of(self.server)
            (there,) = {"host1", "host2"} - {source}
            self.fails(GUEST, resize={"flavorRef": flavor})
            self.assertEqual(there, self.host_of(self.server))
            self.hard_reboot()
            self.period(there)
            got = self.recorded(self.server)
            self.assertEqual(2, len(got))
            self.assertVGPUs(self.server, got, there)
            self.assertEqual(2, len(self.kernels[there].made))
            self.period(source)
            self.assertEqual({}, dict(self.kernels[source].made))
