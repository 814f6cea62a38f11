# SPDX-License-Identifier: Apache-2.0
"""The translation of libvirt's and QEMU's errors about GPUs into nova-gpu's errors."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import libvirt
from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.core import boundary, exception, printable
from nova_gpu.core.model import GPU
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt import counters

LOG = logging.getLogger(__name__)

_CHECK = "nova-gpu host check, on that host, says more"
_GONE = "repair or replace the card, or boot the host again"
_IOMMU = f"turn on VT-d or AMD-Vi in the host's firmware and kernel; {_CHECK}"
_BUSY = "end what uses it on the host, or remove the domain with virsh if it is not needed"
_RMRR = (
    "turn off in the firmware what uses it there (HPE: shared memory features of the slot, by "
    "conrep or hpqcat), or put the card into another host"
)
_LOCKED = (
    "give libvirt's guests a larger limit of locked memory (LimitMEMLOCK of the service that "
    "starts them)"
)
_MANAGER = "NVIDIA's vGPU manager refuses it"
_REMAPPING = "turn on interrupt remapping (x2APIC) in the host's firmware, and intremap=on"
_FUNCTION = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAME = rf"(?:{_FUNCTION}|{_UUID})"
# As QEMU 7.2 and QEMU 10.0 say it.
_OPENING = r"(failed to open /dev/vfio/|Could not open '/dev/vfio/)"
_MAPPING = r"(VFIO_MAP_DMA failed|IOMMU_IOAS_MAP(_FILE)? failed|vfio_(container_)?dma_map\()[^\n]*"


class _Of(enum.Enum):
    """What is at fault in a failed start.

    ``DEVICE``: the device that the error names, else its host. ``PLACE``: what the host does with
    that device. ``HOST``: the host, for any device and guest.
    ``HOST_FOR_GUEST``: the host, for a guest of this size. ``HOST_MEMORY``: its free memory.
    ``GUEST``: the guest as requested.
    """

    DEVICE = enum.auto()
    PLACE = enum.auto()
    HOST = enum.auto()
    HOST_FOR_GUEST = enum.auto()
    HOST_MEMORY = enum.auto()
    GUEST = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class _Cause:
    """A cause of a failed start that a message of libvirt or QEMU identifies.

    :param pattern: the regular expression that finds the cause in the message; the text of its
        group ``others``, such as another domain's name, is not shown to the instance's user
    :param reason: the cause in nova-gpu's words; ``{who}`` stands for the text of group ``who``
    :param is_of_vgpus: whether the message has this cause only for guests with NVIDIA vGPUs
    """

    of: _Of
    pattern: str
    reason: str
    remedy: str
    for_user: str = "try again; if it fails again, ask the operator"
    is_of_vgpus: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Blame:
    """What the error of a failed start says of the host.

    ``cause`` is the same for all failures alike. ``name`` is the device of the guest that the error
    names, ``None`` if it names none or any other device would fail, too. ``is_its_own``: whether
    that device may be at fault itself. ``is_of_host``: whether only the host can be at fault.
    ``is_known``: whether the message has a known cause; otherwise the request may be at fault.
    """

    cause: str
    name: str | None
    is_its_own: bool
    is_of_host: bool = False
    is_known: bool = True


# Any other message of QEMU about a VFIO device: about containers, groups or iommufd.
_UNKNOWN = _Cause(
    _Of.DEVICE,
    rf"{_OPENING}|error getting device from group|Failed to set iommu|"
    rf"no available container|iommufd|failed to add group \d+ to KVM|vfio {_NAME}:",
    "the host's vfio refuses it",
    f"see the kernel's log; {_CHECK}",
)
# The first cause whose pattern matches counts. The messages are those of libvirt
# (src/hypervisor/virhostdev.c, src/util/virpci.c, src/util/virprocess.c, src/qemu/qemu_hostdev.c,
# qemu_conf.c, src/conf/domain_validate.c), of QEMU (hw/vfio, system/physmem.c,
# backends/hostmem-file.c, util/oslib-posix.c), and of the kernel (drivers/iommu/iommu.c,
# drivers/iommu/intel/iommu.c, drivers/vfio/vfio_iommu_type1.c, drivers/iommu/iommufd/device.c), of
# which QEMU quotes only the errno.
_CAUSES: Sequence[_Cause] = (
    _Cause(
        _Of.PLACE,
        r"is in use by driver \S+, domain (?P<others>\S+)",
        "another domain has it",
        _BUSY,
    ),
    _Cause(
        _Of.PLACE,
        r"(PCI|mediated) device \S+ is in use",
        "another domain has it",
        _BUSY,
    ),
    _Cause(
        _Of.PLACE,
        r"must be manually detached from the host",
        "a driver of the host has it",
        f"bind all functions of the card to vfio-pci; {_CHECK}",
    ),
    _Cause(
        _Of.HOST,
        r"host doesn't support (passthrough of host PCI devices|VFIO PCI)",
        "the host's IOMMU is off or its kernel has no vfio",
        _IOMMU,
    ),
    _Cause(
        _Of.PLACE,
        r"no iommu_group found",
        "the host's IOMMU is off or does not cover it",
        _IOMMU,
    ),
    _Cause(
        _Of.PLACE,
        r"group (?P<who>\d+) is not viable",
        "drivers of the host have other devices of its IOMMU group {who}",
        "put it into a slot whose ports have ACS; where they are functions of the card, bind them "
        f"to vfio-pci; {_CHECK}",
    ),
    _Cause(
        _Of.PLACE,
        r"is not assignable",
        "libvirt finds it not isolated from other devices",
        f"put it into a slot whose ports have ACS; {_CHECK}",
    ),
    _Cause(
        _Of.PLACE,
        rf"({_OPENING}\d+|error getting device from group \d+|error bind device fd=)[^\n]*busy",
        "another process of the host has it open",
        _BUSY,
    ),
    _Cause(
        _Of.HOST,
        rf"({_OPENING}|/dev/iommu|/dev/vfio/)[^\n]*(Permission denied|Operation not permitted)",
        "QEMU may not open the host's /dev/vfio or /dev/iommu",
        "see the kernel's log for AppArmor or SELinux; name these nodes in cgroup_device_acl of "
        "libvirt's qemu.conf, and let their owner and mode admit libvirt's user",
    ),
    _Cause(
        _Of.HOST,
        rf"({_OPENING}|/dev/iommu|/dev/vfio/)[^\n]*No such (file|device)",
        "the host has no such node in /dev/vfio, or no /dev/iommu",
        "load the modules (modprobe vfio-pci; for iommufd, modprobe iommufd), and let udev make "
        "the nodes, in a container too",
    ),
    _Cause(
        _Of.DEVICE,
        r"Unable to power on device, stuck in D3|stuck in D3",
        "it does not wake from its power state D3cold",
        "boot the host with disable_idle_d3=1 among the options of vfio-pci, or with a udev rule "
        "that writes 0 to its d3cold_allowed in sysfs, which each boot sets to 1",
    ),
    _Cause(
        _Of.PLACE,
        r"\bINTx\b[^\n]*busy",
        "a device of the host has the same interrupt line, which it cannot mask",
        "put it into another slot, or unbind that device's driver (see /proc/interrupts)",
    ),
    _Cause(
        _Of.PLACE,
        r"platform RMRR requirement|requested this device have a 1:1 IOMMU mapping|"
        r"Failed to set group container: Invalid argument|"
        r"error attach \S+ \(\d+\) to id=\d+: Invalid argument",
        "the host's firmware keeps memory of its own for it (RMRR on Intel, unity map on AMD)",
        _RMRR,
    ),
    _Cause(
        _Of.HOST,
        r"No interrupt remapping|MSI interrupts are not secure|"
        r"error bind device fd=\d+ to iommufd=\d+: Operation not permitted",
        "the host does not remap interrupts, so a device could send another guest's",
        _REMAPPING,
    ),
    # The kernel gives QEMU the same errno for both of the two causes above.
    _Cause(
        _Of.PLACE,
        r"Failed to set iommu for container: Operation not permitted",
        "the host's IOMMU refuses it: its firmware keeps memory for it (RMRR), or interrupts are "
        "not remapped",
        f"where the kernel's log has 'RMRR': {_RMRR}; where it has 'interrupt remapping': "
        f"{_REMAPPING}",
    ),
    _Cause(
        _Of.HOST_FOR_GUEST,
        rf"{_MAPPING}No space left on device",
        "the guest's memory takes more mappings than the host's vfio allows",
        "raise the module option dma_entry_limit of vfio_iommu_type1, or give the guest huge pages "
        "(hw:mem_page_size)",
        "take a flavor with huge pages or less memory, or ask the operator",
    ),
    _Cause(
        _Of.HOST_FOR_GUEST,
        r"No more available PCI slots",
        "the guest has more devices than PCIe ports",
        "raise [libvirt]num_pcie_ports of the host if it is below 28, or give the guest fewer "
        "devices",
        "attach fewer ports and volumes at its start, or ask the operator",
    ),
    _Cause(
        _Of.HOST_FOR_GUEST,
        rf"{_MAPPING}Cannot allocate memory",
        "the guest's memory cannot be locked for it",
        f"if the limit of locked memory is below the guest's memory, {_LOCKED}; otherwise give the "
        "host more free memory",
    ),
    _Cause(
        _Of.HOST_FOR_GUEST,
        r"cannot limit locked memory",
        "the guest's memory cannot be locked for it",
        _LOCKED,
    ),
    _Cause(
        _Of.GUEST,
        r"Only one vgpu device can have 'ramfb' enabled",
        "two of its vGPUs are to show the boot screen (ramfb), and QEMU has one",
        "take one vGPU, or vGPUs without a display",
        "take one vGPU, or vGPUs without a display",
    ),
    _Cause(
        _Of.HOST_MEMORY,
        r"unable to map backing store for guest RAM: Cannot allocate memory|Insufficient free host "
        r"memory pages|preallocating memory failed",
        "the host has too few free huge pages for the guest",
        "reserve more of them there (hugepages= of its kernel, or nr_hugepages)",
        "try again later, or take a flavor without huge pages (hw:mem_page_size)",
    ),
    _Cause(
        _Of.HOST_MEMORY,
        r"Unable to find any usable hugetlbfs mount|hugetlbfs filesystem is not mounted",
        "the host has no hugetlbfs of the guest's page size mounted",
        "mount it there (dev-hugepages.mount of systemd, or one of that page size), name it in "
        "hugetlbfs_mount of libvirt's qemu.conf if that is set, and restart libvirt",
        "try again later, or take a flavor without huge pages (hw:mem_page_size)",
    ),
    _Cause(
        _Of.HOST_MEMORY,
        r"cannot set up guest memory|cannot fork child process: Cannot allocate memory",
        "the host has too little free memory for the guest",
        "raise [DEFAULT]reserved_host_memory_mb there, or lower its memory's allocation ratio: a "
        "guest with GPUs has all of its memory from its start on",
        "try again later, or take a flavor with less memory",
    ),
    _Cause(
        _Of.PLACE,
        r"Device \S+ not found: could not access",
        "it is no longer on the PCI bus",
        _GONE,
    ),
    _Cause(
        _Of.PLACE,
        r"Unknown PCI header type",
        "it no longer answers on the PCI bus",
        _GONE,
    ),
    _Cause(
        _Of.DEVICE,
        r"Unable to reset PCI device",
        "it could not be reset",
        "boot the host again; if it comes back, the card cannot be given to guests one after "
        "another there",
    ),
    _Cause(
        _Of.PLACE,
        r"Failed to (bind|detach|unbind) PCI device|Failed to load PCI driver module",
        "libvirt could not take it from the host's driver",
        f"see the kernel's log; {_CHECK}",
    ),
    # QEMU continues after some of these errors, those about the memory of devices.
    _Cause(
        _Of.HOST_FOR_GUEST,
        rf"{_MAPPING}(Invalid argument|Bad address|File exists)",
        "the host's IOMMU cannot map the guest's memory, whose addresses are wider than its own",
        "keep the guest's addresses within the IOMMU's, which nova-gpu host check names: less "
        "memory, or fewer address bits (hw:maxphysaddr_mode=emulate and hw:maxphysaddr_bits)",
        "take a flavor with less memory, or ask the operator",
    ),
    # The kernel's part of NVIDIA's vGPU software gives QEMU only an errno (nvidia-vgpu-vfio).
    _Cause(
        _Of.DEVICE,
        r"error getting device from group \d+: (Input/output error|Connection timed out|Bad "
        r"address)|failed to read device config space: Bad address",
        _MANAGER,
        "remove the reason that its journal has (journalctl -u nvidia-vgpu-mgr), and have the "
        "service run: restart nvidia-vgpu-mgr if it does not",
        is_of_vgpus=True,
    ),
    _UNKNOWN,
)
# (pattern of the message, reason) of a failed live migration of a guest with vGPUs. The messages
# are those of libvirt (src/qemu/qemu_migration.c) and QEMU (hw/vfio/migration.c,
# hw/vfio/common.c).
_IMMOVABLE: Sequence[tuple[str, str]] = (
    (r"cannot migrate a domain with <hostdev", "the host's libvirt cannot migrate such a device"),
    (
        r"VFIO migration is not supported in kernel|VFIO device doesn't support migration",
        "its driver on the host cannot save its state",
    ),
    (r"Migration is disabled for VFIO device", "its migration is disabled in QEMU"),
    (
        r"Multiple VFIO devices migration|P2P migration",
        "its driver on the host can save the state of one of a guest's vGPUs, not of several",
    ),
    (r"dirty (page )?tracking", "its driver cannot report what it writes in the guest's memory"),
    (r"vIOMMU", "the guest has an IOMMU of its own"),
    (r"\bvfio\b", "the host's vfio cannot migrate it"),
)
# Devices in messages of libvirt and QEMU: a function by its address, a mediated device by its UUID
_NAMED = re.compile(
    rf"(?P<function>{_FUNCTION})|(?:vfio |mediated device |mdev/devices/)'?(?P<uuid>{_UUID})"
)

# libvirt's error codes for an invalid definition, as opposed to a failure to store a valid one
_WRONG = (
    *("VIR_ERR_CONFIG_UNSUPPORTED", "VIR_ERR_XML_ERROR", "VIR_ERR_XML_DETAIL"),
    *("VIR_ERR_XML_INVALID_SCHEMA", "VIR_ERR_INVALID_ARG"),
)
# A message that matches this may not hold for another host, with another QEMU, processor or
# firmware.
_ANOTHER_MAY = re.compile(
    r"does not support machine type|emulator|firmware|\bCPU\b|\bhost\b|"
    r"(by|with|in) this QEMU(?! binary or)",
    re.IGNORECASE,
)
_AT_DEFINITION = "is_at_definition"
_NVIDIAS = "/nvidia-"  # in the slot of an NVIDIA vGPU, before the number of its type
_PATH = re.compile(r"(?<![\w.])/[\w.+@:-]+(/[\w.+@:-]*)+")
_LONGEST = 160


@contextlib.contextmanager
def defining(then: Callable[[], None] | None) -> Iterator[Callable[[], None]]:
    """Mark libvirt's error if the block raises it before libvirt has defined the guest.

    :func:`translated` and :func:`blame` read the mark: such an error is about the definition.

    :param then: the callback that Nova makes once the guest is defined, ``None`` without one
    :returns: the callback to give to Nova in place of *then*, which it calls
    """
    is_defined = False

    def defined() -> None:
        nonlocal is_defined
        is_defined = True
        if then is not None:
            then()

    try:
        yield defined
    except libvirt.libvirtError as error:
        setattr(error, _AT_DEFINITION, not is_defined)
        raise


@contextlib.contextmanager
def translated(instance_uuid: str, devices: Collection[GPU | Slot]) -> Iterator[None]:
    """Raise nova-gpu's error in place of libvirt's if a guest with *devices* fails to start.

    Any other error passes unchanged.

    :raises GuestCannotStart: in place of an error about one of the devices, or the host's memory
    :raises GuestUnfit: in place of libvirt's refusal of a definition that no host could accept
    """
    began = time.time()
    try:
        yield
    except libvirt.libvirtError as error:
        if not devices:
            raise
        message = str(error)
        failure = translate(message, names(instance_uuid, devices)) or _unfit(error)
        if failure is None:
            counters.failed(exception.UnknownFailure(None, message, ""))
            LOG.warning(
                "libvirt failed to start a guest with GPUs, with an error that nova-gpu does not "
                "know: %s. If the GPUs are its reason, report the text to nova-gpu.",
                printable.printable(message, printable.MOST_OF_A_LINE),
                instance_uuid=instance_uuid,
            )
            raise
        if failure.reason == _MANAGER:
            failure.others = _of_manager(began)
        raise failure from error


def _of_manager(began: float) -> str:
    """Return the last errors in the journal of NVIDIA's vGPU manager, or why there are none."""
    try:
        with boundary.crossed():
            lines = nova_gpu.privsep.vgpu.manager_errors(began)
    except boundary.Failure as error:
        return f"its journal cannot be read from here: {error}"
    return "; ".join(lines) or (
        "its journal has nothing since the start began, or this host's journal is not here, as in "
        "a container: read it on the host"
    )


def names(instance_uuid: str, devices: Iterable[GPU | Slot]) -> dict[str, str]:
    """Map each name of a device in libvirt's and QEMU's messages to its card's address or its slot.

    The names are the addresses of PCI functions and the UUIDs of mediated devices.
    """
    texts = {}
    for device in devices:
        if isinstance(device, GPU):
            texts.update({str(function): str(device.address) for function in device.functions})
        else:
            texts[str(device.parent)] = texts[device_uuid(instance_uuid, device)] = str(device)
    return texts


def translate(message: str, device_by_name: Mapping[str, str]) -> exception.GuestError | None:
    """Return nova-gpu's error for libvirt's *message* about the start of a guest with GPUs.

    Return ``None`` if the message has no known cause, or names only devices that are not in
    *device_by_name*, such as other passthrough devices of the guest. A message that names no device
    is about the host.

    :param device_by_name: the guest's GPUs, as :func:`names` returns them
    """
    cause, match = _cause(message, device_by_name)
    if cause is None or match is None:
        return None
    named = list(_named(message))
    about = [device_by_name[name] for name in named if name in device_by_name]
    guest_error: exception.GuestError
    if cause.of is _Of.GUEST:
        guest_error = exception.GuestUnfit(cause.reason, cause.remedy)
    elif cause.of is _Of.HOST_MEMORY:
        guest_error = exception.BetterElsewhere(None, cause.reason, cause.remedy)
    elif named and not about:
        return None
    else:
        words = match.groupdict()
        reason, others = cause.reason.format(**words), words.get("others")
        kind = exception.DeviceUnavailable
        if cause is _UNKNOWN:
            kind, others = exception.UnknownFailure, printable.printable(message, _LONGEST)
        guest_error = kind(next(iter(about), None), reason, cause.remedy, others)
    guest_error.for_user = cause.for_user
    return guest_error


def blame(error: Exception, device_by_name: Mapping[str, str]) -> Blame | None:
    """Return what the *error* of a guest's start says of the host or of one of its GPUs.

    Return ``None`` if it says nothing: the request or its size is at fault, or libvirt refused the
    definition, whose message may quote the request. A user could otherwise have devices withheld.
    """
    if not isinstance(error, libvirt.libvirtError) or getattr(error, _AT_DEFINITION, False):
        return None
    message = str(error)
    cause, _ = _cause(message, device_by_name)
    if cause is None or cause.of not in (_Of.DEVICE, _Of.PLACE, _Of.HOST):
        return None
    named = list(_named(message))
    about = next((name for name in named if name in device_by_name), None)
    if named and about is None:
        return None
    name = None if cause.of is _Of.HOST else about
    is_its_own, is_of_host = cause.of is _Of.DEVICE and name is not None, cause.of is _Of.HOST
    return Blame(cause.reason, name, is_its_own, is_of_host, cause is not _UNKNOWN)


def _cause(
    message: str, device_by_name: Mapping[str, str]
) -> tuple[_Cause, re.Match[str]] | tuple[None, None]:
    """Return the first of ``_CAUSES`` whose pattern matches *message*, and the match.

    Return ``None`` twice if no pattern matches, or the guest has no GPUs. Lines with a warning are
    skipped: libvirt quotes all of QEMU's output, with its warnings and parts of the request.
    """
    lines = (line for line in message.splitlines() if "warning: " not in line)
    message = printable.lines("\n".join(lines))
    has_vgpus = any(_NVIDIAS in device for device in device_by_name.values())
    for cause in _CAUSES if device_by_name else ():
        if cause.is_of_vgpus and not has_vgpus:
            continue
        if match := re.search(cause.pattern, message, re.IGNORECASE):
            return cause, match
    return None, None


def _named(message: str) -> Iterator[str]:
    """Yield the PCI addresses and mediated devices' UUIDs in *message*, first to last."""
    for match in _NAMED.finditer(message):
        yield match["function"] or match["uuid"]


def _unfit(error: libvirt.libvirtError) -> exception.GuestUnfit | None:
    """Return nova-gpu's error if libvirt refuses a definition that no other host would accept.

    Return ``None`` for any other *error* of libvirt.
    """
    codes = {getattr(libvirt, name, None) for name in _WRONG} - {None}
    if not (getattr(error, _AT_DEFINITION, False) and error.get_error_code() in codes):
        return None
    message = str(error)
    if _ANOTHER_MAY.search(message):
        return None
    # The message may quote the request, and contain paths of the host.
    message = printable.printable(_PATH.sub("a file", message), _LONGEST)
    return exception.GuestUnfit(
        f"libvirt refuses it: {message}", "change that in its image or flavor"
    )


def of_move(error: Exception, slot_by_name: Mapping[str, Slot]) -> str | None:
    """Return why one of the guest's vGPUs cannot be live migrated, from libvirt's *error*.

    Return ``None`` if the error is about anything else. A message that names none of the vGPUs
    is taken to be about the first one.

    :param slot_by_name: the slots of the guest's vGPUs, by QEMU's name for each: the address of a
        function or the UUID of a mediated device
    """
    if not isinstance(error, libvirt.libvirtError) or not slot_by_name:
        return None
    message = str(error)
    named = (slot for name, slot in slot_by_name.items() if name in message)
    about = next(named, next(iter(slot_by_name.values())))
    for pattern, reason in _IMMOVABLE:
        if re.search(pattern, message, re.IGNORECASE):
            return f"vGPU {about} cannot be moved: {reason}"
    return None
