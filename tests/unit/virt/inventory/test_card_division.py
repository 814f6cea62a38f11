# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping

import fixtures
from oslo_config import fixture as config_fixture

from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress
from nova_gpu.host import child_process
from nova_gpu.host.vgpu import preparation, virtual_functions
from tests.fixtures import nvml, pci, vgpu
from tests.fixtures.bases.vgpus import CARD, PROFILED, VGPUsTestCase


class DivideCommandTest(VGPUsTestCase):
    """A program of the operator's, after the functions are enabled and before a guest gets one"""

    def prepare(self) -> None:
        self.host.add_gpu(PROFILED, "10de", "26b9", totalvfs=1)
        for function in vgpu.add_functions(self.host, PROFILED, 1):
            vgpu.set_profiles(self.host, function, vgpu.L40S)
        self.done = self.host.root / "done"
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.config.config(group="gpu", virtual_functions=[f"{PROFILED}=1"])
        self.let("false")

    def let(self, end: str) -> None:
        text = f"printenv NOVA_GPU_ADDRESS >> {self.done}; {end}"
        self.config.config(group="gpu", divide_command=["/bin/sh", "-c", text])

    def test_once_since_the_host_booted(self) -> None:
        def is_offered() -> bool:
            return not self.vgpus.cards.look.cards[PciAddress.parse(PROFILED)].reasons

        for end, runs, expected in (
            ("echo why; false", 2, False),
            ("true", 3, True),
            ("true", 3, True),  # it is done
            ("false", 4, False),  # another program
            ("true", 5, True),
        ):
            self.let(end)
            self.compute.restart()
            self.assertEqual([PROFILED] * runs, self.done.read_text().split(), end)
            self.assertEqual(expected, is_offered(), end)
        self.assertIn("[gpu]divide_command ended with 1: why", self.log.output)
        self.config.config(group="gpu", virtual_functions=[f"{PROFILED}=2"])
        self.compute.restart()
        self.assertIn("it has 1 already", self.log.output)
        self.assertTrue(is_offered(), "its guests have what it was divided into")
        self.config.config(group="gpu", virtual_functions=[f"{PROFILED}=1"])
        pci.write(self.host.roots.proc / "sys/kernel/random/boot_id", "another\n")
        self.compute.restart()
        self.assertEqual([PROFILED] * 6, self.done.read_text().split())
        ignored = "[gpu]divide_command runs for no card of this host"
        self.assertNotIn(ignored, self.log.output)
        self.config.config(group="gpu", virtual_functions=[f"{CARD}=1", "8086:56c0=1"])
        self.compute.restart()
        self.assertNotIn(ignored, self.log.output, "the first is a card of NVIDIA's")
        self.config.config(group="gpu", virtual_functions=["8086:56c0=1"])
        self.compute.restart()
        self.assertEqual(1, self.log.output.count(ignored))
        self.config.config(group="gpu", mig_profile=["10de:26b9=1g.24gb"])
        self.config.config(group="libvirt", virt_type="lxc", uid_maps=["0:1:1"], gid_maps=["0:1:1"])
        self.compute.restart()
        self.assertEqual(2, self.log.output.count(ignored), "a host of containers")


class PreparedTest(VGPUsTestCase):
    """Steps around the enabling of functions, by stand-ins for NVML and NVIDIA's sriov-manage"""

    def prepare(self) -> None:
        self.host.add_gpu(PROFILED, "10de", "26b9", totalvfs=1, driver="nvidia", minor=0)
        (self.function,) = vgpu.add_functions(self.host, PROFILED, 1)
        vgpu.set_profiles(self.host, self.function, vgpu.L40S)
        self.link = self.host.path(PROFILED) / "virtfn0"
        self.target = self.link.readlink()
        self.done = self.host.root / "done"
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.library = self.useFixture(nvml.Library())
        program = self.host.root / "sriov-manage"
        answers = self.library.environment["NVML_ANSWERS"]
        program.write_text(
            f"#!/bin/sh\necho functions >> {self.done}\nln -s {self.target} {self.link}\n"
            f"sed -i s/mig=0/mig=1/ {answers}\n"
        )
        program.chmod(0o755)
        self.useFixture(fixtures.MockPatchObject(virtual_functions, "SRIOV_MANAGE", program))

    def booted(self, answers: Mapping[str, str], **options: object) -> list[str]:
        """What is done to the card after a boot of the host, at which it has lost its functions.

        :param answers: lines of NVML's about the card
        """
        self.link.unlink(missing_ok=True)
        self.done.write_text("")
        pci.write(self.host.roots.proc / "sys/kernel/random/boot_id", f"{answers}{options}\n")
        names = ("mig_profile", "vgpu_mixed_sizes", "vgpu_scheduler")
        values = {name: [options[name]] if name in options else [] for name in names}
        self.config(group="gpu", virtual_functions=["10de:26b9=1"], **values)
        return self.restarted(answers)

    def restarted(self, answers: Mapping[str, str]) -> list[str]:
        more = {"profile.0": "47 4 1 24576 MIG 1g.24gb", **answers}
        card = nvml.Card(PROFILED, "NVIDIA RTX PRO 6000", 10, 97887, "12.0", more=more)
        self.library.say(card, done=str(self.done), **{"compute.0": "0 1", "computes.1": "1"})
        self.compute.restart()
        return [line for line in self.done.read_text().splitlines() if line]

    def reason(self) -> str:
        return str(self.vgpus.division.unprepared.get(PciAddress.parse(PROFILED), ""))

    def test_in_their_order_at_each_boot(self) -> None:
        product = "10de:26b9"
        instance = ["gpu instance 47", "compute instance 0"]
        for answers, options, done in (
            ({}, {}, ["functions"]),
            ({}, {"vgpu_mixed_sizes": f"{product}=true"}, ["functions", "mixed 1"]),
            ({}, {"vgpu_mixed_sizes": f"{product}=false"}, ["functions"]),
            ({}, {"vgpu_scheduler": f"{product}=fixed_share"}, ["functions", "scheduler 3"]),
            (
                {"mig": "0 0", "room.47": "2"},
                {"mig_profile": f"{product}=1g.24gb"},
                ["mode 1", "functions", *instance, *instance],
            ),
        ):
            self.assertEqual(done, self.booted(answers, **options), options)
            self.assertEqual("", self.reason())
            self.assertEqual(done, self.restarted(answers), "once since the boot")
        self.config(group="gpu", mig_profile=[], vgpu_mixed_sizes=[f"{product}=true"])
        self.assertEqual([*done, "mixed 1"], self.restarted({}), "another option")
        vgpu.set_profiles(self.host, self.function, {}, current=1155)
        self.config(group="gpu", vgpu_scheduler=[f"{product}=equal_share"])
        self.assertEqual([*done, "mixed 1"], self.restarted({}), "a guest may have the vGPU")
        self.assertIn(f"GPU {PROFILED} has vGPUs: what the options set", self.log.output)

    def test_after_a_death_in_between(self) -> None:
        """Of four instances two were made, and the second's compute instance was not."""
        half = {"mig": "1 1", "room.47": "2", "instances.47": "2"}
        with fixtures.MockPatchObject(
            preparation, "finish", side_effect=child_process.Failed("killed")
        ):
            self.booted({"mig": "0 0"}, mig_profile="10de:26b9=1g.24gb")
        self.assertIn("killed", self.reason())
        self.done.write_text("")
        made = ["compute instance 0", *["gpu instance 47", "compute instance 0"] * 2]
        self.assertEqual(made, self.restarted(half))
        self.assertEqual("", self.reason())

    def test_a_failure_is_the_cards(self) -> None:
        product = "10de:26b9"
        mixed, mig = {"vgpu_mixed_sizes": f"{product}=true"}, {"mig_profile": f"{product}=1g.24gb"}
        for answers, options, message in (
            (
                {"scheduler_refused": "3"},
                {"vgpu_scheduler": f"{product}=equal_share"},
                "[gpu]vgpu_scheduler not set",
            ),
            ({}, {"vgpu_scheduler": f"{product}=fixed_share", **mixed}, "fixed share scheduler"),
            ({}, {**mixed, **mig}, "in MIG mode each GPU instance has its own"),
            ({"mig": "1 1", "room.47": "0"}, mig, "no room for an instance of 1g.24gb"),
        ):
            self.booted(answers, **options)
            self.assertIn(message, self.reason())
            card = self.vgpus.cards.look.cards.get(PciAddress.parse(PROFILED))
            self.assertFalse(card and not card.reasons, message)
