# SPDX-License-Identifier: Apache-2.0
"""Ten instances of stock Nova on three hosts are taken over as they run, used, and given back.

One host has cards that libvirt binds, two have them bound at boot, and one of these has mediated
devices.
:class:`ReportedTest` has PCI in Placement. What an operator types is what :doc:`/admin/migrating`
shows.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from lab.vm import cards
from tests.cloud import databases, takeover
from tests.takeover import base
from tests.takeover.base import ALIAS, FIRST, HOSTS, SECOND, THIRD, TYPE
from tests.vfio.host import HOST_DRIVERS

_BOUND = (SECOND, THIRD)
_CARD = cards.WHOLE[0]
_SOUND = f"{_CARD[:-1]}1"
_STOCK_CARD, _STOCK_VGPU = {ALIAS: "gpu:1"}, {"resources:VGPU": "1"}
# nova-gpu has no such words: they come back as they were. There is one card for both.
_GROUPS = {"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "none"}
_CARD_OF_OURS = {"gpus": "= 1"}
_VGPU_OF_OURS = {"vgpus": "= 1", "vgpu_type": f"s== {TYPE}"}
_INSTANCES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    FIRST: {"both": {ALIAS: "gpu:1,sound:1"}, "plain": {}, "stopped plain": {}},
    SECOND: {"single": _STOCK_CARD, "network": {ALIAS: "network:1,gpu:1"}, "other plain": {}},
    THIRD: {
        "vgpu": _STOCK_VGPU,
        "vgpus": _GROUPS,
        "stopped": _STOCK_VGPU,
        "third plain": {},
    },
}
_STOPPED = ("stopped plain", "stopped")
# Cards, or vGPUs, of the others none
_COUNTS = {"both": 1, "single": 1, "network": 1, "vgpu": 1, "vgpus": 2, "stopped": 1}
# Of a host: how long it has been up, how many cards were cleaned, and empty folders
_REMAINS = (
    *takeover.REMAINS,
    r"cell1\.compute_nodes\[.*\]\.stats\.uptime: .*",
    r"\w+:/var/tmp/nova/gpu-counters\.json( \(mode\))?: \(nothing\) -> .*",
    r"\w+:/var/tmp/nova/gpu-(bindings|clean|vgpus) \(mode\): \(nothing\) -> drwxr-xr-x",
)
_MEANWHILE = (
    *takeover.MEANWHILE,
    r"\w+:/var/tmp/nova/gpu-(providers|clean/.*|vgpus/.*)( \(mode\))?: \(nothing\) -> .*",
    r"\w+:mdev\[.*\]\.(persistent|autostart): .* -> .*",
)


def _without_words(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: ({**server, "flavor": {**server["flavor"], "extra_specs": None}}, actions)
        for name, (server, actions) in shown.items()
    }


class ThereAndBackTest(base.TakeoverTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.specs = {FIRST: (_CARD, _SOUND), SECOND: cards.WHOLE, THIRD: ()}
        self.divided = {THIRD}
        self.together(self.bind_at_boot, _BOUND)
        self.begin()
        self.together(lambda host: self.boot_at(host, _INSTANCES[host]))
        self.perform("os-stop", "SHUTOFF", *_STOPPED)
        # Whoever starts nova-compute counts its pools of devices anew.
        self.together(self.cloud.kill_compute)
        self.together(self.start)

    def test_there_and_back_and_used(self) -> None:
        self.assertEqual(10, len(self.servers))
        self.assertStocks()
        self.look()
        tonight, tomorrow = takeover.commands("Try it tonight")
        before, shown = self.dump(), self.shown()

        self.on_each_host(tonight)
        self.assertOurs()
        expected = (*_REMAINS, *_MEANWHILE)
        self.assertEqual([], databases.differences(before, self.dump(), expected))
        self.assertShown(shown)

        self.on_each_host(tomorrow)
        self.assertStocks()
        self.assertEqual([], databases.differences(before, self.dump(), _REMAINS))
        self.assertEqual(shown, self.shown())
        self.perform("reboot", "ACTIVE", "both", type="HARD")
        self.seen("both")

        self.interrupt("single")
        self.on_each_host(tonight)
        self.refuse_to_leave_a_resize("single")
        targets = {"single": THIRD, "vgpu": FIRST}
        self.use(_CARD_OF_OURS, _VGPU_OF_OURS, deleted="network", targets=targets)
        self.assertOurs()
        self.end_guest_that_libvirt_bound()

        # Where two of them are now
        self.specs[THIRD] = cards.WHOLE
        self.divided.add(FIRST)
        self.on_each_host(tomorrow)
        self.assertStocks()
        # Nova 34 refuses to evacuate one with a mediated device: it looks for the old host's
        # provider too (LibvirtDriver._allocate_mdevs).
        self.use(_STOCK_CARD, _STOCK_VGPU, deleted="third plain", targets={"single": SECOND})
        self.assertStocks()
        for name in list(self.servers):
            self.cloud.delete(self.servers.pop(name))
        self.together(self.assertBound, _BOUND)

    def end_guest_that_libvirt_bound(self) -> None:
        """Use and delete it: libvirt returns its card to the host's drivers, reset."""
        server = self.servers["both"]
        self.seen("both")
        self.reset(server)
        self.reboot_softly("both")
        self.assertHave()
        self.remove("both")
        self.offer(cards.PRODUCT_ID, len(cards.WHOLE) * len(HOSTS))
        self.assertEqual(HOST_DRIVERS, self.host.drivers(_CARD))
        proof = json.loads(self.host.proof(_CARD))
        self.assertEqual(server["id"], proof["after"])
        self.assertIn("reset", proof["by"])

    def interrupt(self, name: str) -> None:
        """Kill the takeover between two writes: the driver ends it when nova-compute starts.

        The instance moves afterwards without a request of stock Nova.
        """
        host, last = self.places[name], "change its flavor and its records"
        self.cloud.kill_compute(host)
        self.drivers[host] = takeover.OURS
        self._choose(host)
        words = ("adopt", "--apply", "--with-gpufilter", self.servers[name]["id"])
        status, output = self.cloud.command(*words, host=host, killed_after=last)
        self.assertEqual(-signal.SIGKILL, status, output)
        self.assertEqual(self.recorded(name), self.rows(name))
        self.start(host)
        self.assertEqual([], self.rows(name))
        self.shelve(name)
        self.assertHave()

    def refuse_to_leave_a_resize(self, name: str) -> None:
        """Plan the way back while a resize may be reverted, which gives the card back."""
        host = self.places[name]
        self.resize({name: {}})
        self.drivers[host] = takeover.STOCK
        self._choose(host)
        status, output = self.cloud.command("leave", host=host)
        self.drivers[host] = takeover.OURS
        self._choose(host)
        self.assertEqual(1, status, output)
        self.assertIn("a migration of it is finished", output)
        self.perform("revertResize", "ACTIVE", name)
        self.assertHave()

    def look(self) -> None:
        """Look before the takeover, which finds nothing in the way but the scheduler."""

        def look(host: str) -> list[str]:
            self._choose(host)
            status, output = self.cloud.command("adopt", "--apply", host=host)
            self.assertNotEqual(0, status, output)
            self.assertIn("nothing is taken over without --with-gpufilter", output)
            status, output = self.cloud.command("shadow", "--json", host=host)
            self.assertEqual(0, status, output)
            report = json.loads(output[output.index("\n{") :])  # after what is logged
            return [instance["uuid"] for instance in report["instances"]]

        uuids = sorted(uuid for uuids in self.together(look).values() for uuid in uuids)
        self.assertEqual(sorted(self.servers[name]["id"] for name in _COUNTS), uuids)

    def on_each_host(self, commands: Sequence[str]) -> None:
        self.together(lambda name: self.type(name, commands))

    def use(
        self,
        card: Mapping[str, str],
        vgpu: Mapping[str, str],
        *,
        deleted: str,
        targets: Mapping[str, str],
    ) -> None:
        """Do with the instances all that their owners and operators do.

        :param card: the properties of a flavor with a card, *vgpu* with a vGPU
        :param deleted: with nova-gpu it gives up a card, as the other one's host needs a free one
        :param targets: where those go that are evacuated, one after the other
        """
        used = ("single", "vgpu")
        self.perform("reboot", "ACTIVE", "vgpus", deleted, type="HARD")
        self.remove(deleted)
        self.resize({"single": card, "vgpu": vgpu})
        self.perform("revertResize", "ACTIVE", "single")
        self.perform("confirmResize", "ACTIVE", "vgpu")
        self.periods()
        self.assertHave()
        self.reboot_softly(*used)
        self.perform("os-stop", "SHUTOFF", *used)
        self.assertHave()
        self.perform("os-start", "ACTIVE", *used, *_STOPPED)
        self.perform("os-stop", "SHUTOFF", *_STOPPED)
        self.assertHave()
        self.shelve(*used, "vgpus")
        self.assertHave()
        for name, target in targets.items():
            self.evacuate(name, target)
            self.assertHave()

    def assertHave(self) -> None:
        """Check that guests have what their instances ask for, each alone."""
        self.assertAlone()
        for name in self.servers:
            cards_ = [device for device in self.has(name) if not device.endswith(".1")]
            nics = int(name == "network")
            self.assertEqual(_COUNTS.get(name, 0) + nics, len(cards_), name)

    def assertOurs(self) -> None:
        """Check that nova-gpu has the cards of each instance, and stock Nova none."""
        self.assertHave()
        for name in self.servers:
            self.assertEqual(_COUNTS.get(name, 0), len(self.recorded(name)), name)
            nics = [cards.NETWORK] if name == "network" else []
            self.assertEqual(nics, self.rows(name), name)
        for host in HOSTS:
            status, output = self.cloud.command("verify", host=host)
            self.assertEqual(0, status, output)
            # libvirt makes none of their mediated devices when the host boots.
            files = self.host_states[host].kept().items()
            lasting = [value for place, value in files if place.endswith(".persistent")]
            self.assertNotIn("1", lasting)

    def assertStocks(self) -> None:
        """Check that stock Nova has the cards of each instance, and nothing is nova-gpu's."""
        self.assertHave()
        for name in self.servers:
            self.assertEqual([], self.recorded(name), name)
            functions = self.rows(name)
            mediated = self.named(self.servers[name], self.places[name])
            self.assertLessEqual(set(functions), set(self.has(name)), name)
            nics = int(name == "network")
            devices = [device for device in (*functions, *mediated) if not device.endswith(".1")]
            self.assertEqual(_COUNTS.get(name, 0) + nics, len(devices), name)
        self.assertFalse(self.cloud.has_gpu_provider())

    def assertShown(self, before: Mapping[str, Any]) -> None:
        """Check that their owners see another flavor's words, and nothing else."""
        self.assertEqual(_without_words(before), _without_words(self.shown()))


class ReportedTest(ThereAndBackTest):
    """The same where Nova has the devices of its aliases in Placement."""

    REPORTED = True
