# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import threading

import fixtures
from hypothesis import strategies as st
from oslo_config import fixture as config_fixture

from nova_gpu.conf import CONF
from nova_gpu.core import exception, model, names
from nova_gpu.host import nodes
from nova_gpu.host.container import contents
from nova_gpu.host.pci import direct_links
from nova_gpu.host.vfio import open_devices, passthrough
from nova_gpu.virt.inventory import card_groups, discovery
from nova_gpu.virt.usage import domains
from tests.fixtures import damage, hosts
from tests.fixtures.bases import fuzz as base


def _readable(root: pathlib.Path) -> list[pathlib.Path]:
    """Every file, link and folder below *root* that a reader may come to, and some it looks for"""
    paths = [*root.rglob("*")]
    cards = [path.parent for path in paths if path.name == "numa_node"]
    paths += [
        card / name for card in cards for name in ("physfn", "driver", "mdev_supported_types")
    ]
    return sorted(set(paths))


class SysfsTest(base.FuzzTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.hosts = [
            hosts.build(name, self.root / name, nodes=hosts.nodes.Nodes.FILES)
            for name in ("mixed", "displays", "two-architectures")
        ]
        self.hosts[0].add_xgmi([])
        self.paths = [_readable(host.root) for host in self.hosts]
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.config(group="libvirt", uid_maps=["0:1:9"], gid_maps=["0:1:9"])
        self.config(group="gpu", nvml=False)
        # Which processes have a card open is asked through privsep's daemon, which is not here.
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.vfio.in_use", lambda _: {}))

    def look(self, host: hosts.Host, virt_type: str) -> None:
        """All that nova-compute reads of its host in a period and at a guest's start"""
        self.config(group="gpu", **host.options())
        self.config(group="libvirt", virt_type=virt_type)
        host_discovery = discovery.Discovery()
        try:
            gpus = host_discovery.find()
        except exception.DiscoveryFailed:
            return
        unavailable = host_discovery.unavailable(gpus)
        self.check(gpus, card_groups.offered(gpus, {}, host_discovery.delivery.mode, unavailable))
        domains.parts(gpus, host.roots)
        for gpu in gpus:
            list(passthrough.lasting_obstacles(gpu, host.roots))
            nodes.guest_nodes(gpu.address, host.roots)
            with contextlib.suppress(exception.GuestCannotStart):
                contents.contents([gpu], host.roots, self.root / "libraries", os.getuid())
        direct_links.of_xgmi(host.roots.sysfs)

    def check(self, gpus: tuple[model.GPU, ...], groups: card_groups.CardGroups) -> None:
        addresses = [gpu.address for gpu in gpus]
        self.assertEqual(sorted(set(addresses)), addresses)
        for key in groups:
            # What Placement is told can be told apart again.
            name = names.provider_name("node", key)
            self.assertEqual(key, names.parse_provider_name("node", name))
        for gpu in gpus:
            for number in (gpu.numa_node, gpu.iommu_group):
                self.assertGreaterEqual(number or 0, 0)

    @base.fuzzed(
        share=0.5,
        which=st.integers(0, 2),
        harmed=damage.SOME,
        virt_type=st.sampled_from(["kvm", "lxc"]),
    )
    def test_other_contents(
        self, which: int, harmed: list[tuple[int, damage.Harm]], virt_type: str
    ) -> None:
        with damage.all_done(self.paths[which], harmed):
            before = base.open_files()
            self.look(self.hosts[which], virt_type)
            self.assertEqual(before, base.open_files())

    @base.fuzzed(
        share=0.5, name=base.TEXT | st.from_regex(r"[0-9A-F]{4,9}:[0-9A-F]{2}:\d\d\.[0-9]")
    )
    def test_other_names_on_the_bus(self, name: str) -> None:
        host = self.hosts[2]
        address = next(iter(host.gpus())).address
        try:
            (host.devices / name).symlink_to(host.path(str(address)))
        except (OSError, ValueError):
            return  # no file can have that name
        try:
            self.look(host, "kvm")
        finally:
            (host.devices / name).unlink()

    @base.fuzzed(share=0.2, order=st.permutations(range(40)))
    def test_what_vanishes_while_it_is_read(self, order: list[int]) -> None:
        root = self.root / "hot"
        shutil.rmtree(root, ignore_errors=True)
        host = hosts.build("mixed", root, nodes=hosts.nodes.Nodes.FILES)
        there = sorted(path.name for path in host.devices.iterdir())
        functions = [there[number] for number in order if number < len(there)]
        begin = threading.Barrier(2)

        def unplug() -> None:
            begin.wait()
            for address in functions:
                host.remove(address)

        thread = threading.Thread(target=unplug)
        thread.start()
        try:
            begin.wait()
            self.look(host, "kvm")
            self.look(host, "lxc")
        finally:
            thread.join()
        self.assertEqual((), host.gpus())
        self.look(host, "kvm")

    @base.fuzzed(share=0.5, harmed=damage.SOME)
    def test_devices_that_may_be_open(self, harmed: list[tuple[int, damage.Harm]]) -> None:
        gpus = self.hosts[0].gpus()
        with damage.all_done(self.paths[0], harmed):
            for gpu in gpus:
                with contextlib.suppress(OSError):  # binding.py makes BindingFailed of it
                    open_devices.numbers(gpu, self.hosts[0].roots)
