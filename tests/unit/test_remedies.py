# SPDX-License-Identifier: Apache-2.0
"""No remedy is the cause: each is carried out in the state in which it is given.

Each state of a host is made on a generated tree, and nova-gpu's own text read. What the text
advises is then done there, each alternative alone: it must be possible, change the state and not
lead back to the same text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from unittest import mock

import libvirt
import yaml
from nova import exception as nova_exception
from nova import objects
from oslo_config import fixture as config_fixture
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.cmd import host_check
from nova_gpu.conf import CONF
from nova_gpu.core import exception, health_verdict, unavailability
from nova_gpu.core.health_verdict import NvmlHealth
from nova_gpu.core.model import GPU, MIGInstance, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import service_socket
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.state import quarantine
from nova_gpu.host.vgpu import virtual_functions
from nova_gpu.virt import libvirt_errors
from nova_gpu.virt.health import failed_starts, monitor
from nova_gpu.virt.inventory import discovery
from tests.fixtures import (
    ailments,
    cards,
    cdi,
    consoles,
    histories,
    hosts,
    nodes,
    pci,
    processors,
    sriov_kernel,
    vgpu,
)

CARD, OTHER, PORT, SWITCH = "0000:3b:00.0", "0000:af:00.0", "0000:02:00.0", "0000:05:00.0"
FUNCTION, TYPED = "0000:3b:00.1", [f"0000:3b:00.{n}/nvidia-1155/0" for n in (4, 5)]
_ADDRESS = PciAddress.parse(CARD)
_MIG = tuple(MIGInstance(n, 0, "1g.18gb", 16384, slices=1) for n in (9, 10))


@dataclasses.dataclass
class Machine:
    """A generated host and the options of nova-gpu there"""

    host: hosts.Host
    config: Callable[..., None]

    by_check: bool = False
    by_option: bool = False
    service: histories.Service | None = None
    watch: monitor.Watch | None = None
    health: NvmlHealth = dataclasses.field(default_factory=NvmlHealth)
    mig: tuple[MIGInstance, ...] = _MIG[:1]
    libvirt_version: int | None = 10000000
    refuses: Callable[[], str | None] | None = None
    # What else is so at this host, of which a generated tree shows nothing
    also: set[str] = dataclasses.field(default_factory=set)
    ends: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def text(self) -> str | None:
        """Why the card is not given to guests; ``None`` if it is, or nova-gpu has no part in it.

        *by_check*: what ``nova-gpu host check`` says of it, first what has a remedy here.
        *by_option*: what nova-compute logs when it enables functions of the card. *service*: what
        it says, which cleans the card when it starts. *watch*: what it says, by NVML's *health*.
        *refuses*: the fault of a guest with it, of whose start QEMU or libvirt says that.
        """
        if self.refuses:
            try:
                with libvirt_errors.translated(uuids.guest, self.devices()):
                    if message := self.refuses():
                        raise libvirt.libvirtError(message)
            except exception.GuestError as error:
                return str(error)
            return None
        if self.watch:
            self.ends.enter_context(mock.patch.object(self.watch, "_ask_at", 0.0))
            host_discovery = discovery.Discovery(libvirt_version=lambda: self.libvirt_version)
            return unavailability.text(self.watch.look(host_discovery.find()).get(_ADDRESS, ()))
        if self.by_option:
            try:
                for number in virtual_functions.parse(CONF.gpu.virtual_functions).values():
                    virtual_functions.enable(_ADDRESS, number, self.host.roots, 30)
            except exception.DeviceUnavailable as error:
                return str(error)
            return None
        if self.service:
            try:
                self.service.restart()
                self.service.gpus.releases._retries.wait()
                self.service.period()
            except (exception.InvalidOption, nova_exception.InvalidConfiguration) as error:
                return str(error)
            if shared := self.service.gpus.vgpus.cards.look.cards.get(_ADDRESS):
                own = shared.unavailable.get(min(shared.card.parents))
                return unavailability.text(own or next(iter(shared.unavailable.values()), ()))
            for group in self.service.gpus.assigned.card_inventory.groups().values():
                return unavailability.text(group.unavailable.get(min(group.gpus), ()))
            return None
        if self.by_check:
            finding = self.check()
            texts = (*finding.obstacles, *finding.remarks)
            return next((t for t in texts if any(re.search(r, t) for r in REMEDIES)), None)
        host_discovery = discovery.Discovery(libvirt_version=lambda: self.libvirt_version)
        cards = {gpu.address: gpu for gpu in host_discovery.find()}
        if _ADDRESS not in cards:
            return None
        parts, others = host_discovery.in_parts(cards.values())
        if _ADDRESS in parts:
            return None
        return unavailability.text(others.get(_ADDRESS) or host_discovery.of_card(cards[_ADDRESS]))

    def check(self) -> host_check.Finding:
        host_discovery = discovery.Discovery(libvirt_version=lambda: self.libvirt_version)
        findings = host_check.check(host_discovery, self.host.root)
        return next(finding for finding in findings if finding.address == CARD)

    def devices(self) -> list[GPU | Slot]:
        """Those of a guest that QEMU or libvirt refuses"""
        companions = cards.addresses(FUNCTION)
        card = dataclasses.replace(cards.card(CARD), companions=companions)
        return [Slot.parse(TYPED[0])] if "manager" in self.also else [card]

    def add(self, product: str = "25b6", vendor: str = "10de", **attributes: object) -> None:
        self.host.add_gpu(CARD, vendor, product, **attributes)  # type: ignore[arg-type]

    def move(self) -> None:
        """Into another slot, which has the same address here"""
        self.host.remove(CARD)
        self.add(driver="vfio-pci")

    def write(self, path: str, text: str) -> None:
        (self.host.roots.cdi_spec_dirs[0] / path).write_text(text)

    def describe(self, **document: object) -> None:
        """As the vendor's tool writes a CDI file"""
        made = cdi.nvidia(self.host.root / "driver", [0])
        cdi.save(self.host.roots.cdi_spec_dirs[0] / "nvidia.json", {**made, **document})

    def add_functions(self, types: object = None) -> None:
        self.add("26b9", totalvfs=4)
        for function in vgpu.add_functions(self.host, CARD, 4):
            vgpu.set_profiles(self.host, function, types or {})  # type: ignore[arg-type]
            self.host.bind(function, "nvidia")
            self.host.register_with_vfio(function)


State = Callable[[Machine], None]


# The states. Their names begin with the hosts' virt_type, or with the command that names them.


def kvm_without_iommu(on: Machine) -> None:
    on.add(driver="vfio-pci")
    (on.host.path(CARD) / "iommu_group").unlink()


def kvm_with_a_stranger(on: Machine) -> None:
    on.add(driver="vfio-pci", iommu_group=99)
    on.host.add_device(OTHER, "8086", "10d3", class_code=0x020000, iommu_group=99)


def kvm_with_another_card_in_its_group(on: Machine) -> None:
    on.add(driver="vfio-pci", iommu_group=99)
    on.host.add_gpu(OTHER, "10de", "25b6", iommu_group=99)


def kvm_with_memory_of_the_firmware(on: Machine) -> None:
    on.add(driver="vfio-pci")
    on.host.reserve(CARD, "direct")


def kvm_with_the_boot_display(on: Machine) -> None:
    on.add(class_code=pci.VGA, boot_vga=True)


def kvm_with_the_console(on: Machine) -> None:
    on.add()
    consoles.add_framebuffer(on.host.path(CARD), on.host.roots.sysfs, 0)
    consoles.add_terminals(on.host.roots.sysfs, framebuffer=True)


def kvm_with_the_firmwares_framebuffer(on: Machine) -> None:
    on.add()
    on.host.show_firmware(CARD)


def kvm_with_too_little_room(on: Machine) -> None:
    on.add(driver="vfio-pci", mapped_mib=32 << 10)
    on.config(group="gpu", guest_mmio_gib=32)


def kvm_with_a_device_spec(on: Machine) -> None:
    on.add(driver="vfio-pci")
    on.config(group="pci", device_spec=[json.dumps({"vendor_id": "10de"})])


def kvm_not_divided_as_said(on: Machine) -> None:
    on.add(driver="vfio-pci", totalvfs=4)
    on.config(group="gpu", virtual_functions=[f"{CARD}=4"])


def kvm_with_functions_without_types(on: Machine) -> None:
    on.add_functions()


def kvm_with_vgpus_of_others_types(on: Machine) -> None:
    vgpu.add_p4(on.host, CARD)
    on.config(group="gpu", vgpu_types=["others"])
    vgpu.make(on.host, CARD, "nvidia-63")


def kvm_with_functions_of_no_use(on: Machine) -> None:
    on.add("2335", totalvfs=2)
    vgpu.add_functions(on.host, CARD, 2)


def kvm_with_a_mediated_device(on: Machine) -> None:
    on.add(driver="vfio-pci")
    (on.host.path(CARD) / "mdev_supported_types/nvidia-35/devices/one").mkdir(parents=True)


def kvm_in_no_iommu_mode(on: Machine) -> None:
    on.add(driver="vfio-pci")
    (on.host.path(CARD) / "iommu_group/name").write_text("vfio-noiommu\n")


def kvm_on_a_host_without_iommu(on: Machine) -> None:
    kvm_without_iommu(on)
    shutil.rmtree(on.host.roots.sysfs / "kernel/iommu_groups")


def kvm_in_a_processor(on: Machine) -> None:
    on.add("1638", "1002", driver="vfio-pci", iommu_group=99)
    on.host.add_device(f"{CARD[:-1]}2", "1022", "15df", class_code=0x108000, iommu_group=99)


def kvm_with_too_few_address_bits(on: Machine) -> None:
    on.add(driver="vfio-pci", mapped_mib=256 << 10)
    show_processor(on, processors.Processor("GenuineIntel", 36))


def kvm_divided_by_nova(on: Machine) -> None:
    vgpu.add_p4(on.host, CARD)
    on.config(group="devices", enabled_mdev_types=["nvidia-63"])


def kvm_with_a_function_that_a_driver_has(on: Machine) -> None:
    add_intels(on, driver="xe")


def kvm_with_a_function_that_a_driver_would_take(on: Machine) -> None:
    add_intels(on, driver=None)
    on.host.set_autoprobe(CARD, enabled=True)


def kvm_with_functions_of_an_older_libvirt(on: Machine) -> None:
    on.add_functions(vgpu.L40S)
    set_libvirt(on, 9000000)


def kvm_with_functions_and_no_libvirt(on: Machine) -> None:
    on.add_functions(vgpu.L40S)
    set_libvirt(on, None)


def kvm_with_an_option_in_vain(on: Machine) -> None:
    on.add("26b9")
    on.config(group="gpu", vgpu_mixed_sizes=[f"{CARD}=true"])


def kvm_with_options_that_exclude_each_other(on: Machine) -> None:
    on.add_functions(vgpu.L40S)
    on.config(group="gpu", virtual_functions=[f"{CARD}=4"], vgpu_mixed_sizes=["10de:26b9=true"])
    on.config(group="gpu", vgpu_scheduler=[f"{CARD}=fixed_share"])


def kvm_with_a_superchip(on: Machine) -> None:
    on.add("2342", driver="vfio-pci")


def kvm_with_switches_of_a_service_vm(on: Machine) -> None:
    on.add("2335", driver="vfio-pci")
    on.host.add_device(SWITCH, "10de", "22a3", class_code=0x068000, driver="vfio-pci")


def kvm_with_switches_of_nvlink_5(on: Machine) -> None:
    on.add("2901", driver="vfio-pci")


def lxc_in_partitions_without_nodes(on: Machine) -> None:
    on.add("74a1", "1002", class_code=0x120000)
    on.host.split(CARD, 1, "CPX")


def lxc_without_maps(on: Machine) -> None:
    on.add()
    on.config(group="libvirt", uid_maps=[], gid_maps=[])


def lxc_with_mig_types_that_no_option_names(on: Machine) -> None:
    on.add("2335", mig=[(9, 0)])
    on.config(group="gpu", nvml=True, vgpu_types=["none"])


def lxc_without_driver(on: Machine) -> None:
    on.add(driver=None)


def lxc_with_vfio(on: Machine) -> None:
    on.add(driver="vfio-pci")


def lxc_with_the_boot_display(on: Machine) -> None:
    on.add(class_code=pci.VGA, boot_vga=True)


def lxc_with_old_files(on: Machine) -> None:
    on.add()
    on.describe()
    (on.host.root / f"driver{cdi.LIBDIR}/libcuda.so.{cdi.VERSION}").unlink()


def lxc_with_an_ignored_file(on: Machine) -> None:
    on.add()
    on.describe(cdiVersion="2.0.0")


def lxc_with_libraries_of_another_driver(on: Machine) -> None:
    on.add()
    on.describe()
    load_driver(on, "999.1")


# As host check names them


def check_ports_without_acs(on: Machine) -> None:
    on.host.add_bridge("0000:00:01.0")
    on.host.add_bridge("0000:01:00.0", parent="0000:00:01.0")
    for port, card in ((PORT, CARD), ("0000:02:01.0", OTHER)):
        on.host.add_bridge(port, parent="0000:01:00.0")
        on.host.add_gpu(card, "10de", "25b6", driver="vfio-pci", parent=port)
    on.host.set_acs(PORT, 0)


def check_other_cards_in_its_group(on: Machine) -> None:
    on.add(driver="vfio-pci", iommu_group=99)
    on.host.add_gpu(OTHER, "10de", "25b6", driver="vfio-pci", iommu_group=99)


def check_unsafe_interrupts(on: Machine) -> None:
    on.add(driver="vfio-pci")
    set_unsafe_interrupts(on, "Y")


def check_no_module(on: Machine) -> None:
    on.add()
    (on.host.roots.sysfs / "bus/pci/drivers/vfio-pci").rmdir()


def check_functions_without_a_limit(on: Machine) -> None:
    add_intels(on, driver="vfio-pci")
    set_quantum(on, 0)


def check_functions_of_an_older_kernel(on: Machine) -> None:
    add_intels(on, driver="vfio-pci")


def check_functions_at_plain_vfio(on: Machine) -> None:
    add_intels(on, driver="vfio-pci")
    set_quantum(on, 16)
    on.host.set_autoprobe(CARD, enabled=False)
    modules = on.host.root / "lib/modules" / os.uname().release / "modules.dep"
    pci.write(modules, "kernel/drivers/vfio/pci/xe/xe-vfio-pci.ko:\n")


def check_memory_that_gim_shares(on: Machine) -> None:
    for card in (CARD, OTHER):
        on.host.add_gpu(card, "1002", "74a1", class_code=0x120000, driver="gim", totalvfs=1)
        on.host.add_vf(card, f"{card[:-1]}1")
        on.host.set_autoprobe(card, enabled=False)
    pci.write(on.host.roots.sysfs / "module/gim/parameters/fb_sharing_mode", "0\n")


def check_in_use(on: Machine) -> None:
    on.add()
    folder = on.host.path(CARD) / "drm/card7"
    folder.mkdir(parents=True)
    (folder / "dev").write_text("1:3\n")
    (on.host.roots.proc / "812/fd").mkdir(parents=True)
    (on.host.roots.proc / "812/fd/7").symlink_to("/dev/null")


def check_narrow_iommu(on: Machine) -> None:
    on.add(driver="vfio-pci")
    show_processor(on, processors.SERVER)
    processors.write_intel_iommu(on.host.roots.sysfs, "dmar0", 0x1C0000C40660462)
    on.config(group="libvirt", cpu_mode="host-passthrough")


def add_intels(on: Machine, driver: str | None) -> None:
    on.add("e211", "8086", totalvfs=1)
    on.host.add_vf(CARD, FUNCTION, driver=driver)
    if driver == "vfio-pci":
        on.host.register_with_vfio(FUNCTION)


def check_in_a_pid_namespace(on: Machine) -> None:
    on.add()
    folder = on.host.roots.proc / "1/ns"
    folder.mkdir(parents=True)
    (folder / "pid").symlink_to("pid:[4026532000]")


# As nova-compute logs them when it enables virtual functions


def option_that_its_driver_allows_none_of(on: Machine) -> None:
    want_functions(on, 7, totalvfs=0)


def option_with_more_than_it_can_have(on: Machine) -> None:
    want_functions(on, 7, totalvfs=4)


def option_with_others_than_it_has(on: Machine) -> None:
    want_functions(on, 2, totalvfs=4)
    on.host.add_vf(CARD, FUNCTION)


def option_that_gim_alone_meets(on: Machine) -> None:
    want_functions(on, 1, product=("74a1", "1002"), totalvfs=8)


def want_functions(
    on: Machine, number: int, *, totalvfs: int, product: tuple[str, str] = ("56c0", "8086")
) -> None:
    on.add(*product, totalvfs=totalvfs)
    on.config(group="gpu", virtual_functions=[f"{CARD}={number}"])
    on.ends.enter_context(sriov_kernel.SriovKernel(on.host))


# As nova-compute names them when it starts


def start_whose_command_fails(on: Machine) -> None:
    on.add(driver="vfio-pci")
    on.config(group="gpu", clean_command=["/bin/false"])


def start_without_the_command(on: Machine) -> None:
    on.add(driver="vfio-pci")
    on.config(group="gpu", clean_command=["/nonexistent"])


def start_that_cannot_note(on: Machine) -> None:
    on.add(driver="vfio-pci")
    pci.write(on.host.root / "state/gpu-clean", "no folder")


def start_beside_another(on: Machine) -> None:
    on.add(driver="vfio-pci")
    code = (
        "import pathlib, sys; from nova_gpu.host import roots, service_socket as s;"
        "print(s.claim(roots.Roots(sysfs=pathlib.Path(sys.argv[1]))), flush=True); input()"
    )
    argv = [sys.executable, "-c", code, str(on.host.roots.sysfs)]
    pipe = subprocess.PIPE
    other = on.ends.enter_context(subprocess.Popen(argv, stdin=pipe, stdout=pipe))
    on.ends.callback(other.kill)
    assert other.stdout
    other.stdout.readline()


def start_that_sees_no_other(on: Machine) -> None:
    on.add(driver="vfio-pci")
    on.ends.enter_context(mock.patch.object(service_socket, "_sockets", side_effect=OSError))
    on.ends.enter_context(mock.patch.object(service_socket, "_PROC", "/nonexistent"))


def start_with_an_xid(on: Machine) -> None:
    put_in_quarantine(on, health_verdict.of_xid(79, "GPU has fallen off the bus."))


def start_with_an_xid_until_the_boot(on: Machine) -> None:
    put_in_quarantine(on, health_verdict.of_xid(62, ""), on.host.roots.boot_id())


def start_in_mig_mode(on: Machine) -> None:
    put_in_quarantine(on, health_verdict.of_mig_mode())


def start_lxc_with_a_contained_error(on: Machine) -> None:
    add_instances(on, _MIG[:1])


def start_lxc_with_a_contained_error_of_one_of_two(on: Machine) -> None:
    add_instances(on, _MIG)


def add_instances(on: Machine, instances: tuple[MIGInstance, ...]) -> None:
    on.add("2335")
    divide(on, instances)
    on.config(group="gpu", nvml=True, fatal_xids=[94], clean_command=["/bin/true"])
    ailments.KernelLog(on.host).xid(CARD, 94, instance="GPU-I:09 GPU-CI:00")


def start_with_an_entry_of_no_sense(on: Machine) -> None:
    on.add(driver="vfio-pci")
    pci.write(on.host.root / f"state/gpu-quarantine/{CARD}.json", "[]")


def start_with_entries_that_cannot_be_read(on: Machine) -> None:
    on.add(driver="vfio-pci")
    pci.write(on.host.root / "state/gpu-quarantine", "no folder")


def start_after_guests_that_fail_with_one_card(on: Machine) -> None:
    vgpu.add_p4(on.host, CARD)
    on.text()
    for number in (1, 2, 1):
        run_guest(on, number, "Input/output error", f"{CARD}/nvidia-63/0")


def start_after_guests_that_fail_with_one_function(on: Machine) -> None:
    add_typed(on)
    for number in range(failed_starts.MOST):
        run_guest(on, number, "Input/output error")
    run_guest(on, 0, slot=TYPED[1])


def start_after_guests_that_fail_with_all(on: Machine) -> None:
    add_typed(on)
    for number, slot in enumerate(TYPED):
        run_guest(on, number, "Input/output error", slot)


def put_in_quarantine(
    on: Machine, fault: unavailability.Unavailable, until_boot: str | None = None
) -> None:
    on.add(driver="vfio-pci")
    on.text()
    (card,) = discovery.Discovery(libvirt_version=lambda: on.libvirt_version).find()
    assert on.service
    on.service.gpus.releases.quarantine_fault(card, fault, until_boot)


def add_typed(on: Machine) -> None:
    on.add_functions(vgpu.L40S)
    on.text()


def run_guest(on: Machine, number: int, error: str = "", slot: str = TYPED[0]) -> None:
    """Of a project of its own, with NVIDIA's vGPU at *slot*; it fails with QEMU's *error*."""
    assert on.service
    instance = objects.Instance(uuid=f"{uuids.guest[:-1]}{number}", project_id=str(number))
    slots = [Slot.parse(slot)]
    message = f"vfio {slots[0].parent}: error getting device from group 6: {error}"
    start = on.service.gpus.vgpus.start(instance, slots, is_new=True)
    with contextlib.suppress(libvirt.libvirtError), start:
        if error:
            raise libvirt.libvirtError(message)


# As nova-compute finds them in each period


def health_with_bus_errors(on: Machine) -> None:
    on.add()
    ailments.count_bus_errors(on.host, CARD)
    on.text()
    ailments.count_bus_errors(on.host, CARD, fatal=1)


def health_without_room_for_a_bar(on: Machine) -> None:
    on.add()
    ailments.leave_without_place(on.host, CARD)


def health_in_survivability_mode(on: Machine) -> None:
    on.add("e211", "8086")
    pci.write(on.host.path(CARD) / "survivability_mode", "\n")


def health_excluded_from_its_driver(on: Machine) -> None:
    on.add()
    pci.write(on.host.roots.proc / f"driver/nvidia/gpus/{CARD}/information", "GPU Excluded: Yes\n")


# What NVML says of a card that is not well, by the name of the state
_ILL = {
    "refused": NvmlHealth(refused="NVML error 9"),
    "not_remapped": NvmlHealth(remapping_failed=True),
    **{f"to_recover_{n}": NvmlHealth(recovery_action=n) for n in range(1, 9)},
    "uncorrected": NvmlHealth(uncorrected=7),
    "prohibited": NvmlHealth(compute_mode=2),
    "fabric_not_joined": NvmlHealth(fabric_state=2),
    "fabric_failed": NvmlHealth(fabric_state=3, fabric_status=999),
    "fabric_unhealthy": NvmlHealth(fabric_state=3, fabric_health=1 << 4),
    "pages_to_retire": NvmlHealth(retirement_pending=True),
    "rows_to_remap": NvmlHealth(remapping_pending=True),
}


def _ill(health: NvmlHealth) -> State:
    def state(on: Machine) -> None:
        on.add()
        on.health = health

    return state


# As QEMU and libvirt say of a guest's start


def so(word: str) -> tuple[State, Callable[[Machine], bool]]:
    return lambda on: on.also.add(word), lambda on: word in on.also


def ends(word: str) -> Callable[[Machine], bool]:
    """What ends it, and returns whether it was so"""

    def action(on: Machine) -> bool:
        was = word in on.also
        on.also.discard(word)
        return was

    return action


def unbound_audio(on: Machine) -> None:
    on.add(driver="vfio-pci", companions=(pci.AUDIO,))
    on.host.bind(FUNCTION, "snd_hda_intel")


def drivers_have(on: Machine) -> bool:
    members = (on.host.path(CARD) / "iommu_group/devices").iterdir()
    drivers = [path.resolve() / "driver" for path in members]
    return any(path.exists() and path.resolve().name != "vfio-pci" for path in drivers)


def with_a_network_card(on: Machine) -> None:
    on.add(driver="vfio-pci", iommu_group=99)
    on.host.add_device(OTHER, "8086", "10d3", class_code=0x020000, iommu_group=99, driver="e1000e")


def no_iommu(on: Machine) -> bool:
    return not (on.host.path(CARD) / "iommu_group").exists()


def lacks_acs(on: Machine) -> bool:
    return any("ACS" in remark for remark in on.check().remarks)


def lacks_module(on: Machine) -> bool:
    return not (on.host.roots.sysfs / "bus/pci/drivers/vfio-pci").exists()


def no_nodes(on: Machine) -> bool:
    return not (on.host.roots.dev / "vfio/vfio").exists()


def with_d3cold(on: Machine) -> None:
    on.add(driver="vfio-pci")
    (on.host.path(CARD) / "d3cold_allowed").write_text("1\n")


def d3cold(on: Machine) -> bool:
    return (on.host.path(CARD) / "d3cold_allowed").read_text() == "1\n"


def is_reserved(on: Machine) -> bool:
    return "direct" in (on.host.path(CARD) / "iommu_group/reserved_regions").read_text()


def of_ports(number: int) -> State:
    def state(on: Machine) -> None:
        on.also.add("many devices")
        on.config(group="libvirt", num_pcie_ports=number)

    return state


def lacks_ports(on: Machine) -> bool:
    return "many devices" in on.also and CONF.libvirt.num_pcie_ports < 20


def lacks_all_ports(on: Machine) -> bool:
    return "many devices" in on.also


def with_wide_guests(on: Machine) -> None:
    check_narrow_iommu(on)
    set_libvirt(on, 9000000)


def is_wide(on: Machine) -> bool:
    return "few bits" not in on.also


_SAID = yaml.safe_load(
    pathlib.Path(__file__).parent.joinpath("virt/libvirt_errors.yaml").read_text()
)
_SAID = {**_SAID["devices"], **_SAID["host"], **_SAID["image"]}
_SAID["NVIDIA's vGPU manager refuses it"] = [
    "vfio 0000:01:00.4: error getting device from group 6: Input/output error"
]
# Which of the texts in libvirt_errors.yaml, what makes its state, and whether that lasts
_FAILURES: tuple[tuple[str, int, State, Callable[[Machine], bool]], ...] = (
    ("another domain has it", 0, *so("user")),
    ("another domain has it", 1, *so("user")),
    ("other devices of its IOMMU group 13", 0, with_a_network_card, drivers_have),
    ("other devices of its IOMMU group 13", 0, unbound_audio, drivers_have),
    ("a driver of the host", 0, unbound_audio, drivers_have),
    ("IOMMU is off", 0, kvm_on_a_host_without_iommu, no_iommu),
    ("IOMMU is off", 1, kvm_without_iommu, no_iommu),
    ("libvirt finds it not isolated", 0, check_ports_without_acs, lacks_acs),
    ("another process of the host has it open", 0, *so("user")),
    ("the host's vfio refuses it", 0, unbound_audio, drivers_have),
    ("firmware keeps memory for it (RMRR), or interrupts are not remapped", 0, *so("unmapped")),
    (
        "firmware keeps memory for it (RMRR), or interrupts are not remapped",
        *(0, kvm_with_memory_of_the_firmware, is_reserved),
    ),
    ("firmware keeps memory of its own for it", 0, kvm_with_memory_of_the_firmware, is_reserved),
    ("does not remap interrupts", 0, *so("unmapped")),
    ("whose addresses are wider than its own", 0, with_wide_guests, is_wide),
    ("memory cannot be locked", 0, *so("low limit")),
    ("memory cannot be locked", 0, *so("memory used")),
    ("memory cannot be locked", 3, *so("low limit")),
    ("take it from the host's driver", 0, Machine.add, lacks_module),
    ("no longer on the PCI bus", 0, *so("gone")),
    ("no longer answers", 0, *so("gone")),
    ("could not be reset", 0, *so("gone")),
    ("power state D3cold", 0, with_d3cold, d3cold),
    ("more mappings than the host's vfio", 0, *so("small pages")),
    ("more devices than PCIe ports", 0, of_ports(2), lacks_ports),
    ("more devices than PCIe ports", 0, of_ports(28), lacks_all_ports),
    ("QEMU may not open the host's /dev/vfio", 0, *so("denied")),
    ("no such node in /dev/vfio", 0, Machine.add, no_nodes),
    ("the same interrupt line", 0, *so("shared line")),
    ("too little free memory", 0, *so("memory used")),
    ("too few free huge pages", 0, *so("small pages")),
    ("no hugetlbfs of the guest's page size", 0, *so("not mounted")),
    ("boot screen", 0, *so("two displays")),
    ("NVIDIA's vGPU manager refuses it", 0, *so("manager")),
)


def _failing(key: str, number: int, make: State, lasts: Callable[[Machine], bool]) -> State:
    message = re.sub("0000:0[12]:00", CARD[:-2], _SAID[key][number])

    def state(on: Machine) -> None:
        make(on)
        if not on.host.has(CARD):
            on.add(driver="vfio-pci")
        on.refuses = lambda: message if lasts(on) else None

    return state


STATES: dict[str, State] = {
    name: state
    for name, state in globals().items()
    if re.match("(kvm|lxc|check|option|start|health)_", name) and name != "health_verdict"
}
STATES |= {f"health_{name}": _ill(health) for name, health in _ILL.items()}
STATES |= {f"guest_{number}_{row[0]}": _failing(*row) for number, row in enumerate(_FAILURES)}


# What operators do


def set_unsafe_interrupts(on: Machine, value: str) -> None:
    name = "module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
    pci.write(on.host.roots.sysfs / name, f"{value}\n")


def set_libvirt(on: Machine, version: int | None) -> None:
    on.libvirt_version = version


def set_quantum(on: Machine, value: int) -> None:
    pci.write(on.host.path(CARD) / "sriov_admin/vf1/profile/exec_quantum_ms", f"{value}\n")


def take_from_driver(on: Machine) -> None:
    on.host.set_autoprobe(CARD, enabled=False)
    on.host.bind(FUNCTION, None)


def show_processor(on: Machine, processor: processors.Processor) -> None:
    (on.host.roots.proc / "cpuinfo").unlink(missing_ok=True)
    processors.write(on.host.roots.proc, processor)


def turn_mig_off(on: Machine) -> None:
    on.host.set_mig(CARD, [])


def divide(on: Machine, instances: tuple[MIGInstance, ...]) -> None:
    on.mig = instances
    on.host.set_mig(
        CARD, [(instance.gpu_instance, instance.compute_instance) for instance in instances]
    )


def create_again(on: Machine) -> None:
    before = on.mig
    divide(on, before[1:])
    on.text()
    divide(on, before)


def load_driver(on: Machine, version: str) -> None:
    line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Jan  7\n"
    folder = on.host.roots.proc / "driver/nvidia"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "version").write_text(line)


def turn_on_iommu(on: Machine) -> None:
    on.host.remove(CARD)
    on.add(driver="vfio-pci")


def free_framebuffer(on: Machine) -> None:
    (on.host.roots.proc / "iomem").write_text("00000000-00000000 : System RAM\n")


def show_elsewhere(on: Machine) -> None:
    free_framebuffer(on)
    on.host.remove(CARD)
    on.add()
    graphics = on.host.roots.sysfs / "class/graphics/fb0"
    graphics.unlink(missing_ok=True)


def want_as_many_as_said(on: Machine) -> None:
    match = re.search(r"set the option to (\S+)", on.text() or "")
    assert match
    on.config(group="gpu", virtual_functions=[f"{CARD}={match[1]}"])


def make_gpu_instances(on: Machine) -> None:
    for link in on.host.path(CARD).glob("virtfn*"):
        vgpu.set_profiles(on.host, link.resolve().name, vgpu.L40S)


def remove_vgpus(on: Machine) -> None:
    for device in (on.host.roots.sysfs / "bus/mdev/devices").iterdir():
        folder = device.resolve()
        device.unlink()
        for link in on.host.path(CARD).glob(f"mdev_supported_types/*/devices/{folder.name}"):
            link.unlink()


def name_the_card(on: Machine) -> None:
    on.config(group="gpu", addresses=[CARD])


def name_and_prepare(on: Machine) -> None:
    name_the_card(on)
    on.host.bind(CARD, "vfio-pci")


def load_vendors_driver(on: Machine) -> None:
    on.host.remove(CARD)
    on.add()


def write_files_again(on: Machine) -> None:
    on.describe()
    load_driver(on, cdi.VERSION)  # of which they are then written


def remove_files(on: Machine) -> None:
    (on.host.roots.cdi_spec_dirs[0] / "nvidia.json").unlink()


def bind_functions(on: Machine) -> bool:
    own = [path.name for path in on.host.devices.glob(f"{CARD[:-1]}*")]
    unbound = [name for name in own if not (on.host.path(name) / "vfio-dev").exists()]
    for name in unbound:
        on.host.bind(name, "vfio-pci")
    return bool(unbound)


def follow_check(on: Machine) -> None:
    """Do the first thing that nova-gpu host check says of the card, or bind what it lists."""
    finding = on.check()
    for text in (*finding.obstacles, *finding.remarks):
        for remedy, action in REMEDIES.items():
            if re.search(remedy, text):
                action(on)
                return
    for function, driver in finding.drivers.items():
        if driver != "vfio-pci":
            on.host.bind(function, "vfio-pci")


def free_reserved(on: Machine) -> bool:
    if was := is_reserved(on):
        on.host.reserve(CARD, "msi")
    return was


def use_another_host(on: Machine) -> None:
    on.move()
    on.also.clear()


def load_modules(on: Machine) -> None:
    pci.write(on.host.roots.dev / "vfio/vfio", "")


def keep_out_of_d3cold(on: Machine) -> None:
    on.also.add("udev rule")
    boot(on)


def raise_ports(on: Machine) -> bool:
    was: int = CONF.libvirt.num_pcie_ports
    on.config(group="libvirt", num_pcie_ports=28)
    return was < 28


def take_fewer_bits(on: Machine) -> None:
    text = " ".join(on.check().remarks)
    assert re.search("[0-9]+ (address )?bits", text), text
    on.also.add("few bits")


def correct_command(on: Machine) -> None:
    on.config(group="gpu", clean_command=["/bin/true"])
    release(on)


def release(on: Machine) -> None:
    quarantine.release(on.host.root / "state/gpu-quarantine", _ADDRESS)


def boot(on: Machine) -> None:
    # The driver's count of errors and its mode for programs begin anew, and it asks again for what
    # a boot does not mend.
    (on.host.roots.proc / "sys/kernel/random/boot_id").write_text("another\n")
    on.health = NvmlHealth(remapping_failed=on.health.remapping_failed)
    on.also.discard("gone")
    (on.host.roots.dev / "kmsg").write_text("")
    if on.host.has(CARD) and (allowed := on.host.path(CARD) / "d3cold_allowed").exists():
        allowed.write_text(f"{'udev rule' not in on.also:d}\n")


def reset(on: Machine) -> None:
    """nvidia-smi --gpu-reset, which is no boot of the host, and no program's end"""
    left = {n: getattr(on.health, n) for n in ("remapping_failed", "compute_mode", "fabric_state")}
    action = on.health.recovery_action
    on.health = NvmlHealth(**left, recovery_action=None if action in (1, 4) else action)


def ask(on: Machine, **health: object) -> None:
    on.health = dataclasses.replace(on.health, **health)  # type: ignore[arg-type]


def wait(on: Machine) -> None:
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + failed_starts.TOGETHER_S)
    on.ends.enter_context(mock.patch.object(failed_starts, "time", later))


def enable_again(on: Machine) -> None:
    # Until the boot the kernel gives no folder of sysfs the number of an open or former one.
    for link in on.host.path(CARD).glob("virtfn*"):
        on.ends.callback(os.close, os.open(link, os.O_RDONLY))
    on.host.remove_vfs(CARD)
    for function in vgpu.add_functions(on.host, CARD, 4):
        vgpu.set_profiles(on.host, function, vgpu.L40S)
        on.host.register_with_vfio(function)


# By the words of the advice. One that says several things to do together has one action. ``False``:
# it is not for this state, which the text then has to say.
REMEDIES: dict[str, Callable[[Machine], object]] = {
    "turn on VT-d or AMD-Vi in the firmware and boot": turn_on_iommu,
    "put the card into a slot whose ports have ACS": Machine.move,
    "use another slot or host": Machine.move,
    "bind all of them at boot with nova-gpu host prepare": lambda on: on.host.bind(
        OTHER, "vfio-pci"
    ),
    r"turn that off in the firmware \(HPE": lambda on: on.host.reserve(CARD, "msi"),
    "make another display the host's in its firmware": show_elsewhere,
    r"name the card in \[gpu\]addresses and prepare it": name_and_prepare,
    r"name it in \[gpu\]addresses if": name_the_card,
    "boot with initcall_blacklist=sysfb_init": free_framebuffer,
    "unset that option": lambda on: on.config(group="gpu", guest_mmio_gib=None),
    "take it out of the former": lambda on: on.config(group="pci", device_spec=[]),
    r"out of \[gpu\]addresses": lambda on: on.config(group="gpu", addresses=[OTHER]),
    "take it out of the option to offer it whole": lambda on: on.config(
        group="gpu", virtual_functions=[]
    ),
    r"in MIG mode make GPU instances": make_gpu_instances,
    "run /usr/lib/nvidia/sriov-manage -d": lambda on: on.host.remove_vfs(CARD),
    "turn SR-IOV on in the host's firmware": lambda on: pci.write(
        on.host.path(CARD) / "sriov_totalvfs", "7\n"
    ),
    "or take the card out of the option": lambda on: on.config(group="gpu", virtual_functions=[]),
    "set the option to": want_as_many_as_said,
    "write 0 to .*/sriov_numvfs while no guest": lambda on: on.host.remove_vfs(CARD),
    r"load it with that number for each card \(modprobe gim": lambda on: on.host.add_vf(
        CARD, FUNCTION
    ),
    "remove those": remove_vgpus,
    "remove the card's mediated devices, and the card from": lambda on: shutil.rmtree(
        on.host.path(CARD) / "mdev_supported_types"
    ),
    r"leave it out of \[gpu\]addresses": lambda on: on.config(group="gpu", addresses=[OTHER]),
    r"see \[libvirt\]cpu_mode, or what limits": lambda on: show_processor(on, processors.SERVER),
    "name their type, or turn MIG mode off": lambda on: on.config(group="gpu", vgpu_types=["*"]),
    r"or turn MIG mode off \(": turn_mig_off,
    r"name their type$": lambda on: on.config(group="gpu", vgpu_types=["nvidia-63"]),
    "take that out to have it offered": lambda on: on.config(
        group="devices", enabled_mdev_types=[]
    ),
    r"set \[libvirt\]uid_maps and \[libvirt\]gid_maps": lambda on: on.config(
        group="libvirt", uid_maps=["0:1:1"], gid_maps=["0:1:1"]
    ),
    r"\[gpu\]allow_privileged_containers\)": lambda on: on.config(
        group="gpu", allow_privileged_containers=True
    ),
    "load the vendor's driver$": load_vendors_driver,
    "bind it to the vendor's driver": load_vendors_driver,
    "have the vendor's tool write that file again": write_files_again,
    "have the vendor's tool write it again": write_files_again,
    "remove it where images bring the driver's files": remove_files,
    "of one of them; turn ACS on": lambda on: on.host.set_acs(PORT),
    "for a group of its own, turn ACS on": Machine.move,
    "turn interrupt remapping on": lambda on: set_unsafe_interrupts(on, "N"),
    "install the package with its further modules": lambda on: (
        on.host.roots.sysfs / "bus/pci/drivers/vfio-pci"
    ).mkdir(),
    "write a limit to each": lambda on: set_quantum(on, 16),
    "boot Linux 6.19 or newer": lambda on: set_quantum(on, 16),
    "bind it to that, or to no driver": lambda on: on.host.bind(FUNCTION, None),
    r"name the cards of each group in \[gpu\]link_groups": lambda on: on.config(
        group="gpu", link_groups=[f"{CARD} {OTHER}"]
    ),
    "or load gim so that no card shares memory": lambda on: pci.write(
        on.host.roots.sysfs / "module/gim/parameters/fb_sharing_mode", "1\n"
    ),
    "make it whole": lambda on: (on.host.path(CARD) / "current_compute_partition").write_text(
        "SPX\n"
    ),
    "sriov_drivers_autoprobe": take_from_driver,
    "end that first": lambda on: shutil.rmtree(on.host.roots.proc / "812"),
    "install libvirt 9.3 or newer": lambda on: set_libvirt(on, 9003000),
    "install 10.0.0 or newer": lambda on: set_libvirt(on, 10000000),
    "does not report its version; check that it runs": lambda on: set_libvirt(on, 10000000),
    "take the card out of it in this host's": lambda on: on.config(
        group="gpu", vgpu_mixed_sizes=[]
    ),
    "take the card out of one of them": lambda on: on.config(group="gpu", vgpu_mixed_sizes=[]),
    "use the host for LXC guests": lambda on: on.config(group="libvirt", virt_type="lxc"),
    r"the host's PID namespace \(pid_mode: host\)": lambda on: (
        on.host.roots.proc / "1/ns/pid"
    ).unlink(),
    "see the command's output in nova-compute's log": correct_command,
    "its first value must be the absolute path": correct_command,
    "make .* writable for nova-compute": lambda on: (on.host.root / "state/gpu-clean").unlink(),
    "stop it first": lambda on: on.ends.close(),
    "list the kernel's sockets .* or read /proc": lambda on: on.ends.close(),
    r"or set \[libvirt\]cpu_mode = host-model": lambda on: on.config(
        group="libvirt", cpu_mode="host-model"
    ),
    "Xid catalog and reset, repair or replace the card; then run nova-gpu": release,
    r"quarantine release \S+, or boot the host$": boot,
    r"turn MIG mode off \(nvidia-smi -mig 0\); then run nova-gpu quarantine release": release,
    "check the card; then run nova-gpu quarantine release": release,
    "make .*/gpu-quarantine readable": lambda on: (on.host.root / "state/gpu-quarantine").unlink(),
    "it is tried again after ten minutes": wait,
    "take its card's functions away and enable them again": enable_again,
    "one start is tried in each ten minutes": wait,
    "one that succeeds ends this": lambda on: run_guest(on, 3),
    "reseat or replace the card, or restart": lambda on: ailments.count_bus_errors(on.host, CARD),
    "or restart nova-compute to count from now on": lambda on: setattr(
        on, "watch", monitor.Watch(on.host.roots, asks_nvml=True)
    ),
    "turn on Above 4G Decoding": load_vendors_driver,
    "and update its firmware": lambda on: (on.host.path(CARD) / "survivability_mode").unlink(),
    "remove it from that parameter": lambda on: shutil.rmtree(
        on.host.roots.proc / "driver/nvidia/gpus"
    ),
    "reset, reseat or replace it": reset,
    "replace the card$": lambda on: ask(on, remapping_failed=False),
    r"reset it \(nvidia-smi --gpu-reset\)": reset,
    r"boot the host again(?!, and)": boot,
    "end the processes that use it and its NVLink peers": lambda on: ask(on, recovery_action=0),
    "recover its IMEX domain": lambda on: ask(on, recovery_action=0),
    "reset the bus that it is on": lambda on: ask(on, recovery_action=0),
    "do what .* nvidia-smi -q": lambda on: ask(on, recovery_action=0),
    "nvidia-smi --compute-mode=0": lambda on: ask(on, compute_mode=0),
    "check that nvidia-fabricmanager runs": lambda on: ask(on, fabric_state=3, fabric_status=0),
    "reset the card with its NVSwitches": lambda on: ask(on, fabric_health=0),
    "or boot the host again, and have the board checked": boot,
    "end what uses it on the host": ends("user"),
    "or remove the domain with virsh": ends("user"),
    "bind all functions of the card to vfio-pci": lambda on: bind_functions(on) or None,
    "put it into a slot whose ports have ACS": Machine.move,
    "where they are functions of the card, bind them to vfio-pci": bind_functions,
    "nova-gpu host check, on that host, says more": follow_check,
    "turn on VT-d or AMD-Vi in the host's firmware and kernel": turn_on_iommu,
    "see the kernel's log for AppArmor or SELinux; name these nodes in": ends("denied"),
    r"load the modules \(modprobe vfio-pci": load_modules,
    "with a udev rule that writes 0 to its d3cold_allowed": keep_out_of_d3cold,
    "disable_idle_d3=1": lambda on: (on.host.path(CARD) / "d3cold_allowed").write_text(""),
    "put it into another slot": ends("shared line"),
    "unbind that device's driver": ends("shared line"),
    "turn off in the firmware what uses it there": free_reserved,
    "put the card into another host": use_another_host,
    r"turn on interrupt remapping \(x2APIC\)": ends("unmapped"),
    "raise the module option dma_entry_limit": ends("small pages"),
    "or give the guest huge pages": ends("small pages"),
    r"raise \[libvirt\]num_pcie_ports of the host if it is below 28": raise_ports,
    "give the guest fewer devices": ends("many devices"),
    "larger limit of locked memory": ends("low limit"),
    "otherwise give the host more free memory": ends("memory used"),
    "take one vGPU, or": ends("two displays"),
    "or vGPUs without a display": ends("two displays"),
    "reserve more of them there": ends("small pages"),
    "mount it there": ends("not mounted"),
    r"raise \[DEFAULT\]reserved_host_memory_mb": ends("memory used"),
    "or lower its memory's allocation ratio": ends("memory used"),
    "repair or replace the card, or": ends("gone"),
    "keep the guest's addresses within the IOMMU's": take_fewer_bits,
    "give the switches back to the host": lambda on: on.host.bind(SWITCH, "nvidia-nvswitch"),
    "destroy it and create it again a period later": create_again,
    "or boot the host$": boot,
    "restart nvidia-vgpu-mgr if it does not": ends("manager"),
}


@contextlib.contextmanager
def machine(state: str) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory() as folder, config_fixture.Config(CONF) as options:
        host = hosts.Host(pathlib.Path(folder), nodes=nodes.Nodes.FILES)
        options.config(group="gpu", nvml=False, **host.options())
        maps = {"uid_maps": ["0:1:1"], "gid_maps": ["0:1:1"]}
        prefixes = ("check_", "option_", "start_", "health_")
        by_check, by_option, by_service, by_watch = (
            state.startswith(prefix) for prefix in prefixes
        )
        virt_type = "lxc" if re.match("(start_)?lxc_|health_", state) else "kvm"
        options.config(group="libvirt", virt_type=virt_type, **maps)
        options.config(state_path=folder)
        if by_check:
            (host.roots.sysfs / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
        service = histories.Service(host, virt_type) if by_service else None
        libvirt_version = 9000000 if by_check else 10000000
        on = Machine(host, options.config, by_check, by_option, service)
        on.libvirt_version = libvirt_version
        facts = mock.patch.object(nvml, "query", lambda _: {_ADDRESS: nvml.NvmlFacts(mig=on.mig)})
        with facts, service or contextlib.nullcontext(), on.ends:
            if by_watch:
                options.config(group="gpu", nvml=True)
                on.watch = monitor.Watch(host.roots, asks_nvml=True)
                health = mock.patch.object(nvml, "health", lambda *_: {_ADDRESS: on.health})
                on.ends.enter_context(health)
            STATES[state](on)
            if by_service:
                on.text()  # what it has noted is there when a remedy is carried out
            yield on


class WalkTest(unittest.TestCase):
    def test_all_pairs(self) -> None:
        used = set()
        for state in STATES:
            with machine(state) as on:
                text = self.read(on)
            advice = [remedy for remedy in REMEDIES if re.search(remedy, text)]
            self.assertTrue(advice, f"{state}: no remedy of this test: {text}")
            used.update(advice)
            for remedy in advice:
                with self.subTest(state, remedy=remedy), machine(state) as on:
                    was_so = REMEDIES[remedy](on)
                    if was_so is False and re.search(r"\b(if|where|otherwise)\b", text):
                        continue
                    self.assertNotIn(text.partition(";")[0], self.read(on))
        self.assertEqual(set(), REMEDIES.keys() - used)

    def test_each_cause_of_a_failed_start(self) -> None:
        """So that a new one gets its state."""
        causes = []
        for key, number, *_ in _FAILURES:
            devices = {CARD: TYPED[0] if "manager" in key else CARD}
            causes.append(libvirt_errors._cause(_SAID[key][number], devices)[0])
        self.assertEqual([], [cause for cause in libvirt_errors._CAUSES if cause not in causes])

    def read(self, on: Machine) -> str:
        """Its text, without the machine's folder and the time: each try has others"""
        text = (on.text() or "").replace(str(on.host.root), "")
        return re.sub(r"since \S+: ", "since then: ", text)
