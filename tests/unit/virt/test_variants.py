# SPDX-License-Identifier: Apache-2.0
"""States of a host's cards, and what is offered and given of them then, as tables.

Each row is a story that a functional test would tell in the same way: Nova has no part in it but to
ask for inventories and to start a guest.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable, Mapping
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.conf import devices as nova_devices
from oslo_messaging import exceptions as messaging_exceptions
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import names
from nova_gpu.core.model import MIGInstance, PciAddress
from nova_gpu.host.nvidia import nvml
from nova_gpu.virt.lifecycle.start import Kind
from tests.fixtures import (
    ailments,
    cdi,
    dividing_kernel,
    hosts,
    kernel,
    nodes,
    profiling_kernel,
    sriov_kernel,
    vgpu,
)
from tests.fixtures.compute import Compute
from tests.fixtures.histories import NODENAME

SICK = "0000:04:00.0"
FIRST, SECOND = "0000:3b:00.0", "0000:af:00.0"


class VariantsTestCase(base.BaseTestCase):
    def begin(self, machine: str, virt_type: str = "kvm") -> None:
        """Start the service of a host with these cards, prepared by :meth:`prepare`."""
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu", format="%(message)s"))
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.build(machine, root, nodes.Nodes.FILES)
        self.prepare()
        if virt_type == "kvm":
            drivers = ("vfio-pci", "nvidia", "i915")
            self.useFixture(kernel.Kernel(self.host, drivers))
        self.compute = self.useFixture(Compute(self.host, virt_type))

    def prepare(self) -> None:
        """Add to the host what a test needs."""

    def option(self, **options: object) -> None:
        self.compute.config(group="gpu", **options)

    def boot(self, specs: Mapping[str, str], provider: str, *devices: str) -> objects.Instance:
        had = [(provider, device) for device in devices]
        instance = self.compute.instance(specs, *had)
        self.compute.spawn(instance)
        return instance

    def start_again(self, instance: objects.Instance) -> None:
        """As a user's start does of an instance that is stopped"""
        self.compute.spawn(instance, Kind.REBOOT)

    def inventory(self, product: str) -> tuple[int, int]:
        """Total and reserved of its whole cards"""
        inventory = self.compute.tree.data(self.compute.provider(product)).inventory["PGPU"]
        return inventory["total"], inventory["reserved"]

    def whole(self) -> dict[str, int]:
        """How many whole cards of each product new instances can have"""
        counts = {}
        for uuid in self.compute.tree.get_provider_uuids(NODENAME):
            data = self.compute.tree.data(uuid)
            key = names.parse_provider_name(NODENAME, data.name)
            if key and key.vgpu_type is None:
                inventory = data.inventory["PGPU"]
                if free := inventory["total"] - inventory["reserved"]:
                    counts[key.product_id] = free
        return counts


class IllCardsTest(VariantsTestCase):
    """Containers' cards that stop to answer, report errors, or are gone"""

    def setUp(self) -> None:
        super().setUp()
        self.begin("fermi-8", "lxc")

    def silence(self) -> None:
        ailments.silence(self.host, SICK)

    def answer(self) -> None:
        ailments.answer_again(self.host, SICK)

    def report_errors(self) -> None:
        ailments.count_bus_errors(self.host, SICK)
        self.compute.period()
        ailments.count_bus_errors(self.host, SICK, fatal=1)

    def remove(self) -> None:
        self.host.remove(SICK)

    def put_back(self) -> None:
        self.host.add_gpu(SICK, "10de", "1091", numa_node=0, minor=4)

    def write_files(self) -> None:
        """As the vendor's tool describes the card and its driver to containers"""
        made = cdi.nvidia(self.host.root / "driver", [4])
        cdi.save(self.host.roots.cdi_spec_dirs[0] / "nvidia.json", made)

    def upgrade_driver(self) -> None:
        """The files of the one before are gone, and its description is there."""
        self.write_files()
        (self.host.root / f"driver{cdi.LIBDIR}/libcuda.so.{cdi.VERSION}").unlink()

    # What happens, what ends it, and why no guest starts with such a card
    ROWS: tuple[tuple[Callable[..., None], Callable[..., None] | None, str | None], ...] = (
        (silence, answer, "no longer answers on the PCI bus"),
        (report_errors, None, None),
        (remove, put_back, "no longer on the PCI bus"),
        (upgrade_driver, write_files, "No such file"),
    )

    def test_free_cards(self) -> None:
        for happen, end, _ in self.ROWS:
            with self.subTest(happen.__name__):
                happen(self)
                self.compute.period()
                self.assertEqual((8, 1), self.inventory("1091"))
                if end:
                    end(self)
                self.compute.restart()
                self.assertEqual((8, 0), self.inventory("1091"))

    def test_instances_cards(self) -> None:
        """Each stays the instance's, over a restart as well, and is reserved once it is gone."""
        provider = self.compute.provider("1091")
        for happen, end, message in self.ROWS:
            with self.subTest(happen.__name__):
                server = self.boot({"gpus": "1"}, provider, SICK)
                happen(self)
                self.compute.period()
                self.assertEqual((8, 0), self.inventory("1091"))
                if message:
                    refused = nova_exception.ComputeResourcesUnavailable
                    with self.assertRaisesRegex(refused, message):
                        self.start_again(server)
                self.compute.restart()
                self.assertEqual((8, 0), self.inventory("1091"))
                self.compute.delete(server)
                if end:
                    self.compute.period()
                    self.assertEqual((8, 1), self.inventory("1091"))
                    end(self)
                self.compute.restart()
                self.assertEqual((8, 0), self.inventory("1091"))


class NotDividedTest(VariantsTestCase):
    """Hosts that booted, and on which what divides their cards failed: none of these is whole."""

    kernel: profiling_kernel.ProfilingKernel | dividing_kernel.DividingKernel

    def boot_host(self, change: Callable[[], None]) -> None:
        """Let nothing be there that was made, and the cards be found as *change* leaves them."""
        self.kernel.forget_all()
        change()
        self.compute.restart()

    def lose_state(self) -> None:
        """Nova's records are enough."""
        shutil.rmtree(CONF.state_path)
        pathlib.Path(CONF.state_path).mkdir()

    def assertWhole(self, **expected: int) -> None:
        """Before the next period, and after it"""
        for _ in range(2):
            self.assertEqual({key[3:]: value for key, value in expected.items()}, self.whole())
            self.compute.period()

    def typed(self) -> None:
        """NVIDIA's sriov-manage ended with 1, and left a card as it was found."""
        self.prepare = lambda: setattr(  # type: ignore[method-assign]
            self,
            "kernel",
            self.useFixture(profiling_kernel.ProfilingKernel(self.host, vgpu.L40S)),
        )
        self.begin("l40s-2")
        words = {"vgpus": "1", "vgpu_type": "s== nvidia-1155"}
        provider = self.compute.provider("26b9", "nvidia-1155")
        self.boot(words, provider, "0000:3b:00.4/nvidia-1155/0")
        self.assertWhole(of_25b6=1)

    def lose_functions(self, left: int = 0, driver: str | None = "nvidia") -> None:
        def change() -> None:
            for card in (FIRST, SECOND):
                self.host.remove_vfs(card, left)
                self.host.bind(card, driver)

        self.boot_host(change)

    def test_functions_that_are_gone(self) -> None:
        """Of the other card no instance has any, and no option says that it is divided."""
        self.typed()
        self.lose_functions()
        self.assertWhole(of_25b6=1, of_26b9=1)
        self.assertIn(
            f"GPU {FIRST} (L40S) is not offered: instances have vGPUs of it", self.log.output
        )
        self.option(virtual_functions=["10de:26b9=32"])
        self.compute.restart()
        self.assertWhole(of_25b6=1)
        self.assertIn(
            f"GPU {SECOND} (L40S) is not offered: [gpu]virtual_functions divides it",
            self.log.output,
        )

    def test_without_a_driver_and_state(self) -> None:
        self.typed()
        self.lose_state()
        self.lose_functions(driver=None)
        self.assertWhole(of_25b6=1, of_26b9=1)

    def test_one_function_left(self) -> None:
        self.typed()
        for number in range(5, 8):
            shutil.rmtree(self.host.path(f"0000:3b:00.{number}") / "nvidia")
        self.lose_functions(left=1)
        self.assertWhole(of_25b6=1)

    def test_before_the_database_answers(self) -> None:
        self.typed()
        silent = messaging_exceptions.MessagingTimeout
        with mock.patch("nova_gpu.virt.usage.records.read", side_effect=silent):
            self.compute.restart()
            self.assertWhole()
        self.compute.period()
        self.assertWhole(of_25b6=1)

    def mediated(self) -> None:
        def prepare() -> None:
            for address in (FIRST, SECOND):
                vgpu.add_types(self.host, address, vgpu.TESLA_P4)
            self.kernel = self.useFixture(dividing_kernel.DividingKernel(self.host))

        self.prepare = prepare  # type: ignore[method-assign]
        self.begin("grid-2")

    def lose_types(self) -> None:
        def change() -> None:
            for card in (FIRST, SECOND):
                shutil.rmtree(self.host.path(card) / "mdev_supported_types")

        self.boot_host(change)

    def test_types_that_are_gone(self) -> None:
        """NVIDIA's vGPU manager has not come up."""
        self.mediated()
        words = {"vgpus": "1", "vgpu_type": "s== nvidia-65"}
        self.boot(words, self.compute.provider("1bb3", "nvidia-65"), f"{FIRST}/nvidia-65/0")
        self.lose_types()
        self.assertWhole(of_25b6=1, of_1bb3=1)

    def test_a_card_that_nova_itself_divides(self) -> None:
        self.mediated()
        self.compute.config(group="devices", enabled_mdev_types=["nvidia-65"])
        nova_devices.register_dynamic_opts(CONF)
        self.compute.config(group="mdev_nvidia-65", device_addresses=[FIRST])
        self.lose_types()
        self.assertWhole(of_25b6=1, of_1bb3=1)
        self.assertIn(f"[mdev_nvidia-65]device_addresses names {FIRST}", self.log.output)

    def test_functions_that_an_option_enables(self) -> None:
        def prepare() -> None:
            for card in (FIRST, SECOND):
                self.host.set_autoprobe(card, enabled=False)

        self.prepare = prepare  # type: ignore[method-assign]
        self.begin("flex-2")
        self.option(virtual_functions=[f"{FIRST}=3"])
        kernel = self.useFixture(sriov_kernel.SriovKernel(self.host))
        kernel.refused |= {FIRST}
        for card in (FIRST, SECOND):
            self.host.remove_vfs(card)
        self.compute.restart()
        self.assertEqual([f"{FIRST} 3"], kernel.done)
        self.assertWhole(of_25b6=1, of_56c0=1)

    def test_a_mig_mode_that_the_cards_forgot(self) -> None:
        """From Hopper on none remembers it."""
        cards = [PciAddress.parse("0000:19:00.0"), PciAddress.parse(FIRST)]
        layout = (MIGInstance(1, 0, "3g.71gb", 71680, slices=1),)
        facts: dict[PciAddress, nvml.NvmlFacts] = {}
        self.useFixture(fixtures.MockPatchObject(nvml, "query", lambda *args, **kwargs: facts))
        self.useFixture(fixtures.MockPatchObject(nvml, "health", lambda *args, **kwargs: {}))

        def prepare() -> None:
            for card in cards:
                self.host.set_mig(str(card), [(1, 0)])
            for gpu in self.host.gpus():
                mig = layout if gpu.address in cards else None
                facts[gpu.address] = nvml.NvmlFacts(memory_mib=143771, mig=mig)

        self.prepare = prepare  # type: ignore[method-assign]
        self.begin("h200-8", "lxc")
        self.option(nvml=True)
        self.compute.restart()
        words = {"vgpus": "1", "vgpu_type": "s== 3g.71gb"}
        provider = self.compute.provider("2335", "3g.71gb")
        self.boot(words, provider, f"{cards[0]}/3g.71gb/100")
        for card in cards:
            self.host.set_mig(str(card), [])
            facts[card] = nvml.NvmlFacts(memory_mib=143771, mig=None)
        self.lose_state()
        self.compute.restart()
        self.assertWhole(of_2335=7)
