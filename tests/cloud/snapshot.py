# SPDX-License-Identifier: Apache-2.0
"""A cloud as Nova, Placement, libvirt and sysfs have it at one moment, read in one pass.

Nothing here asks nova-gpu what there is. Of its own words only the reasons are read for which
``nova-gpu list`` says that a card is not offered.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import fixtures
from lxml import etree
from nova import context as nova_context
from nova import objects, service

from nova_gpu.cmd import cards as shown
from nova_gpu.conf import CONF
from nova_gpu.core import exception

Amounts = Mapping[str, int]

CONTAINERS = "lxc"
ALL = 3  # VIR_CONNECT_LIST_DOMAINS_ACTIVE and _INACTIVE
# Display controllers, and processing accelerators, which are not GPUs alone (PCI Code and ID
# Assignment Specification)
_DISPLAYS = ("0x0300", "0x0302", "0x0380")
_GPU_CLASSES = (*_DISPLAYS, "0x1200")
_GPU_VENDORS = ("0x10de", "0x1002", "0x8086")
_SHOWN = "Device Minor: \t (\\d+)"
_LIMITED = "class:"
_DEVICE_CLASSES = ("PGPU", "VGPU")
# All that an instance's row has is read at once: nothing is loaded later, from another cell.
_ATTRIBUTES = (
    *("flavor", "resources", "migration_context", "numa_topology", "pci_devices"),
    *("system_metadata", "fault"),
)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Device:
    """A GPU or vGPU as Nova's database has it (``nova.objects.Resource``)."""

    provider: str
    resource_class: str
    identifier: str

    @property
    def address(self) -> str:
        """The PCI function that it is, or that provides it"""
        return self.identifier.partition("/")[0]


Devices = tuple[Device, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """The usage of a NUMA node of a host, or what an instance has of it"""

    memory_mb: int = 0
    cpus: int = 0
    pinned: frozenset[int] = frozenset()
    pages_mb: int = 0

    def __add__(self, other: Cell) -> Cell:
        return Cell(
            self.memory_mb + other.memory_mb,
            self.cpus + other.cpus,
            self.pinned | other.pinned,
            self.pages_mb + other.pages_mb,
        )


Cells = Mapping[int, Cell]


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """What a flavor takes of a host's processors, memory and disk."""

    vcpus: int = 0
    memory_mb: int = 0
    disk_gb: float = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.vcpus + other.vcpus,
            self.memory_mb + other.memory_mb,
            self.disk_gb + other.disk_gb,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Domain:
    """A domain of libvirt.

    ``devices``: the PCI functions that it names, or whose nodes or mediated devices it names, once
    for each; ``devices`` has a uuid where sysfs has no such mediated device. ``parts``: the nodes
    and uuids that it names.
    """

    uuid: str
    name: str
    is_running: bool
    devices: tuple[str, ...]
    parts: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """A compute host.

    ``provider``: the uuid of its compute node. ``is_up``: whether its nova-compute runs; else
    nothing of it is read but its domains. ``cards``: the GPUs in sysfs. ``published``: what Nova's
    tracker has of the devices of each provider. ``offers``: the cards that these are, or are of.
    ``free``: those devices that the tracker would give. ``claimed``: those that a claim keeps for
    a while which the tracker no longer has (``[gpu]claim_grace_period``).
    ``reasons``: why ``nova-gpu list`` says that a card is not offered, by its address. ``left``:
    what of guests that are gone the host itself has, by kinds. ``bills`` and ``unprintable`` are
    those of :class:`Cloud` where nova-compute is a process of its own.
    """

    name: str
    provider: str
    is_up: bool
    is_container: bool
    domains: Mapping[str, Domain]
    cards: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()
    published: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    free: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    claimed: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    size: Size | None = None
    reserved: Size = Size()
    cells: Cells = dataclasses.field(default_factory=dict)
    left: tuple[tuple[str, str], ...] = ()
    bills: tuple[Bill, ...] = ()
    unprintable: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """An instance as the database has it.

    ``devices``: ``instance.resources``. ``old`` and ``new``: those of the migration context, also
    the sizes and cells. ``device_count``: how many GPUs and vGPUs its flavor asks for. ``pci``: the
    functions that it has by Nova's own passthrough. ``files``: those of its disks.
    ``is_launched``: whether it was built, once.
    """

    uuid: str
    project: str
    host: str | None
    vm_state: str
    task_state: str | None
    power_state: int | None
    size: Size
    parts: Amounts
    device_count: int
    devices: Devices = ()
    old: Devices = ()
    new: Devices = ()
    old_size: Size = Size()
    cells: Cells = dataclasses.field(default_factory=dict)
    old_cells: Cells = dataclasses.field(default_factory=dict)
    pci: frozenset[str] = frozenset()
    fault: str | None = None
    files: tuple[tuple[str, int], ...] = ()
    is_launched: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Migration:
    uuid: str
    instance: str
    type: str
    status: str
    source: str
    dest: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Inventory:
    total: int
    reserved: int


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """A resource provider with its inventories by class and its allocations by consumer."""

    uuid: str
    name: str
    root: str
    inventories: Mapping[str, Inventory]
    allocations: Mapping[str, Amounts]

    @property
    def is_of_gpus(self) -> bool:
        return "_gpu_" in self.name


@dataclasses.dataclass(frozen=True, slots=True)
class Bill:
    """A notification that an instance has GPUs of a host from now on, or no longer.

    ``starts``: the services that had been started before.
    """

    is_claim: bool
    instance: str
    host: str
    addresses: tuple[str, ...]
    starts: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Cloud:
    """``usages`` and ``limits`` are by project and class. ``unprintable``: log records of nova-gpu
    with characters that a terminal or a log takes for something else."""

    hosts: Mapping[str, Host]
    instances: Mapping[str, Instance]
    migrations: Mapping[str, Migration]
    providers: Mapping[str, Provider]
    usages: Mapping[str, Amounts] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, Amounts] = dataclasses.field(default_factory=dict)
    bills: tuple[Bill, ...] = ()
    unprintable: tuple[str, ...] = ()


class Heard(fixtures.Fixture):
    """Keeps what the services log and notify that the oracle is to read.

    :param notifier: Nova's stand-in for a notifier, which tests reset
    """

    def __init__(self, notifier: Any) -> None:
        super().__init__()
        self.bills: list[Bill] = []
        self.unprintable: list[str] = []
        self._notifier = notifier

    def _setUp(self) -> None:
        logger, handler = logging.getLogger("nova_gpu"), _Unprintable(self.unprintable)
        logger.addHandler(handler)
        self.addCleanup(logger.removeHandler, handler)
        notifications = _Kept(self._notifier.notifications)
        notifications.bills = self.bills
        self._notifier.notifications = notifications
        start = service.Service.start

        def started(own: service.Service) -> None:
            notifications.starts += 1
            start(own)

        self.useFixture(fixtures.MonkeyPatch("nova.service.Service.start", started))


class _Kept(list[Any]):
    bills: list[Bill]
    starts = 0

    def append(self, message: Any) -> None:
        super().append(message)
        if message.event_type in ("gpu.claim", "gpu.release"):
            payload = message.payload
            self.bills.append(
                Bill(
                    message.event_type == "gpu.claim",
                    payload["instance_uuid"],
                    payload["host"],
                    tuple(payload["addresses"]),
                    self.starts,
                )
            )


class _Unprintable(logging.Handler):
    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        if not is_printable(text := record.getMessage()):
            self._texts.append(f"{record.name}: {text!r}")


def is_printable(text: str) -> bool:
    """Return whether *text* has no character that controls a terminal or ends a line."""
    return text.isprintable() or not any(
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text
    )


def read(cloud: Any) -> Cloud:
    """Return what Nova, Placement and the hosts of *cloud* say now.

    :param cloud: a test of the functional suite, or a cloud of :mod:`tests.cloud.base`
    """
    heard = cloud.heard
    context = nova_context.get_admin_context()
    instances = {instance.uuid: instance for instance in _instances(cloud, context)}
    migrations = (
        {instance.uuid: instance for instance in _migrations(cloud, context)} if instances else {}
    )
    providers = {provider.uuid: provider for provider in _providers(cloud.placement)}
    projects = {instance.project for instance in instances.values()}
    hosts = {host.name: host for host in cloud.read_hosts()}
    return Cloud(
        hosts=hosts,
        instances=instances,
        migrations=migrations,
        providers=providers,
        usages={project: _usages(cloud.placement, project) for project in projects},
        limits=_limits(getattr(cloud, "limits", None), projects),
        bills=(*heard.bills, *(bill for host in hosts.values() for bill in host.bills)),
        unprintable=(*heard.unprintable, *(t for host in hosts.values() for t in host.unprintable)),
    )


# Nova


def _instances(cloud: Any, context: nova_context.RequestContext) -> Iterator[Instance]:
    faults = getattr(getattr(cloud, "conductor", None), "faults", {})
    for of_cell in contexts(cloud, context):
        rows = objects.InstanceList.get_by_filters(
            of_cell, {"deleted": False, "soft_deleted": True}, expected_attrs=list(_ATTRIBUTES)
        )
        for row in rows:
            yield instance_of(row, faults.get(row.uuid))


def contexts(
    cloud: Any, context: nova_context.RequestContext
) -> Iterator[nova_context.RequestContext]:
    """Yield a context for each cell of *cloud*. If there is one, a context without any means it."""
    has_one = getattr(cloud, "NUMBER_OF_CELLS", 1) == 1
    if has_one:
        yield context
    for name, mapping in cloud.cell_mappings.items():
        if not (has_one and name == "cell1"):
            with nova_context.target_cell(context, mapping) as of_cell:
                yield of_cell


def instance_of(row: objects.Instance, fault: str | None = None) -> Instance:
    """Return Nova's object as a value, for the fault of which *fault* is the default."""
    context = row.migration_context if row.obj_attr_is_set("migration_context") else None
    if row.obj_attr_is_set("fault") and row.fault is not None:
        fault = row.fault.message
    pci = row.pci_devices if row.obj_attr_is_set("pci_devices") else None
    is_by_volume = not row.image_ref
    flavor, old = row.flavor, row.old_flavor if row.obj_attr_is_set("old_flavor") else None
    return Instance(
        uuid=row.uuid,
        project=row.project_id,
        host=row.host,
        vm_state=row.vm_state,
        task_state=row.task_state,
        power_state=row.power_state,
        size=_size(flavor, is_by_volume),
        parts=_parts(flavor, is_by_volume),
        device_count=asked(flavor.extra_specs),
        devices=_devices(row.resources if row.obj_attr_is_set("resources") else None),
        old=_devices(context and context.old_resources),
        new=_devices(context and context.new_resources),
        old_size=_size(old, is_by_volume) if old else Size(),
        cells=_cells_of(row.numa_topology if row.obj_attr_is_set("numa_topology") else None),
        old_cells=_cells_of(context and context.old_numa_topology),
        pci=frozenset(device.address for device in pci or ()),
        fault=fault,
        files=_files(pathlib.Path(CONF.instances_path) / row.uuid),
        is_launched=row.launched_at is not None,
    )


def _devices(resources: Any) -> Devices:
    devices = (
        Device(item.provider_uuid, item.resource_class, item.identifier)
        for item in resources or ()
        if item.resource_class in _DEVICE_CLASSES
    )
    return tuple(sorted(devices))


def _size(flavor: objects.Flavor, is_by_volume: bool) -> Size:
    """As Nova's tracker has it (``ResourceTracker._update_usage``)"""
    root = 0 if is_by_volume else flavor.root_gb
    disk = root + flavor.ephemeral_gb + flavor.swap / 1024
    return Size(flavor.vcpus, flavor.memory_mb, disk)


def _parts(flavor: objects.Flavor, is_by_volume: bool) -> Amounts:
    """What Placement counts of it for the compute node, by its classes; PCPU is VCPU here."""
    size = _size(flavor, is_by_volume)
    disk = -int(-size.disk_gb // 1)
    amounts = {"VCPU": size.vcpus, "MEMORY_MB": size.memory_mb, "DISK_GB": disk}
    for name in amounts:
        if (value := flavor.extra_specs.get(f"resources:{name}")) is not None:
            amounts[name] = int(value)
    return {name: amount for name, amount in amounts.items() if amount}


def asked(extra_specs: Mapping[str, str]) -> int:
    """Return how many GPUs and vGPUs a flavor asks for, by its own words or by Placement's."""
    own = sum(
        int(number[0])
        for name in ("gpus", "vgpus")
        if (number := re.search(r"\d+", extra_specs.get(name, "")))
    )
    of_placement = sum(
        int(value)
        for name, value in extra_specs.items()
        if re.fullmatch(r"resources\w*:[PV]GPU", name)
    )
    return own or of_placement


def _cells_of(topology: Any) -> Cells:
    """Of an instance or of a host"""
    cells: dict[int, Cell] = {}
    for cell in topology.cells if topology else ():
        if isinstance(cell, objects.NUMACell):
            pages_mb = sum(pages.used * pages.size_kb for pages in cell.mempages) // 1024
            pinned = frozenset(cell.pinned_cpus)
            own = Cell(cell.memory_usage, cell.cpu_usage, pinned, pages_mb)
        else:
            pinned = frozenset((cell.cpu_pinning or {}).values())
            pages_mb = cell.memory if cell.pagesize else 0
            own = Cell(cell.memory, len(cell.cpuset), pinned, pages_mb)
        cells[cell.id] = cells.get(cell.id, Cell()) + own
    return {number: cell for number, cell in cells.items() if cell != Cell()}


def _files(folder: pathlib.Path) -> tuple[tuple[str, int], ...]:
    """The names and sizes of an instance's disks; what its guest logs is not among them."""
    if not folder.is_dir():
        return ()
    paths = (path for path in folder.rglob("*") if path.name != "console.log" and path.is_file())
    return tuple(sorted((str(path.relative_to(folder)), path.stat().st_size) for path in paths))


def _migrations(cloud: Any, context: nova_context.RequestContext) -> Iterator[Migration]:
    rows = (objects.MigrationList.get_by_filters(of, {}) for of in contexts(cloud, context))
    for row in itertools.chain.from_iterable(rows):
        yield Migration(
            uuid=row.uuid,
            instance=row.instance_uuid,
            type=row.migration_type or "",
            status=row.status,
            source=row.source_compute,
            dest=row.dest_compute,
        )


def _limits(limits: Any, projects: Iterable[str]) -> Mapping[str, Amounts]:
    """:param limits: the stand-in of :mod:`oslo_limit` for Keystone, if the test has one"""
    if limits is None or "UnifiedLimits" not in CONF.quota.driver:
        return {}
    return {
        project: {
            name.removeprefix(_LIMITED): limit
            for name, limit in (limits.reglimits | limits.projlimits.get(project, {})).items()
            if name.startswith(_LIMITED)
        }
        for project in projects
    }


# Placement


def _providers(placement: Any) -> Iterator[Provider]:
    for row in placement.get("/resource_providers", version="1.14").body["resource_providers"]:
        url = f"/resource_providers/{row['uuid']}"
        inventories = placement.get(f"{url}/inventories").body["inventories"]
        allocations = placement.get(f"{url}/allocations").body["allocations"]
        yield Provider(
            uuid=row["uuid"],
            name=row["name"],
            root=row["root_provider_uuid"],
            inventories={
                name: Inventory(inventory["total"], inventory["reserved"])
                for name, inventory in inventories.items()
            },
            allocations={
                consumer: allocation["resources"] for consumer, allocation in allocations.items()
            },
        )


def _usages(placement: Any, project: str) -> Amounts:
    usages = placement.get(f"/usages?project_id={project}", version="1.9").body["usages"]
    return {name: amount for name, amount in usages.items() if amount}


# Hosts


def domains(connection: Any, system: System) -> Mapping[str, Domain]:
    """Return the domains of a connection of libvirt, by their uuids."""
    return {
        guest.UUIDString(): domain(
            guest.UUIDString(), guest.name(), bool(guest.isActive()), guest.XMLDesc(0), system
        )
        for guest in connection.listAllDomains(ALL)
    }


def domain(uuid: str, name: str, is_running: bool, xml: str, system: System) -> Domain:
    """Return a domain with the devices that its *xml* names."""
    devices: Any = etree.fromstring(xml).find("devices")
    cards, parts = list[str](), list[str]()
    for source in devices.iterfind("hostdev[@type='pci']/source/address"):
        if system.is_gpu(address := _address(source)):
            cards.append(address)
    for name_of_device in devices.xpath("hostdev[@type='mdev']/source/address/@uuid"):
        parts.append(str(name_of_device))
        cards.append(system.parent(str(name_of_device)))
    nodes = {str(node) for node in devices.xpath("hostdev/source/char/text()")}
    by_node = system.nodes if nodes else {}
    parts += [node for node in nodes if node in by_node or "nvidia-cap" in node]
    cards += {by_node[node] for node in nodes if node in by_node}
    return Domain(uuid, name, is_running, tuple(sorted(cards)), tuple(sorted(parts)))


def _address(source: Any) -> str:
    domain, bus, slot, function = (
        int(source.get(part), 16) for part in ("domain", "bus", "slot", "function")
    )
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


class System:
    """The GPUs, nodes and mediated devices of a host in its sysfs and proc."""

    def __init__(self, sysfs: pathlib.Path, proc: pathlib.Path) -> None:
        self._sysfs, self._proc = sysfs, proc
        self._nodes: dict[str, str] | None = None

    @property
    def _devices(self) -> pathlib.Path:
        return self._sysfs / "bus/pci/devices"

    def is_gpu(self, address: str) -> bool:
        """Return whether a PCI function is a GPU or one that a GPU provides; not its audio."""
        folder = self._devices / address
        return not folder.exists() or _content(folder / "class")[:6] in _GPU_CLASSES

    def cards(self) -> Iterator[str]:
        """Yield the addresses of the GPUs, without virtual functions and accelerators."""
        for folder in self._devices.glob("*"):
            if (
                _content(folder / "class")[:6] in _DISPLAYS
                and _content(folder / "vendor") in _GPU_VENDORS
                and not (folder / "physfn").exists()
            ):
                yield folder.name

    def card(self, function: str) -> str:
        """Return the card that a PCI function is, or of which it is a virtual function."""
        physical = self._devices / function / "physfn"
        return physical.resolve().name if physical.exists() else function

    def mediated(self) -> Mapping[str, str]:
        """Return the mediated devices with their parents."""
        paths = (self._sysfs / "bus/mdev/devices").glob("*")
        return {path.name: path.resolve().parent.name for path in paths}

    def parent(self, uuid: str) -> str:
        """Return the parent of a mediated device, or *uuid* itself if there is no such device."""
        path = self._sysfs / "bus/mdev/devices" / uuid
        return path.resolve().parent.name if path.exists() else uuid

    def typed(self) -> Iterator[str]:
        """Yield the virtual functions that have a vGPU type."""
        for path in self._devices.glob("*/nvidia/current_vgpu_type"):
            if _content(path) not in ("", "0"):
                yield path.parent.parent.name

    @property
    def nodes(self) -> Mapping[str, str]:
        """The device nodes of single GPUs, with the addresses of these"""
        if self._nodes is None:
            self._nodes = dict(self._read_nodes())
        return self._nodes

    def _read_nodes(self) -> Iterator[tuple[str, str]]:
        for folder in (self._proc / "driver/nvidia/gpus").glob("*"):
            if minor := re.search(_SHOWN, _content(folder / "information")):
                yield f"/dev/nvidia{minor[1]}", folder.name
        for path in self._devices.glob("*/drm/*"):
            if re.fullmatch(r"(card|renderD)\d+", path.name):
                yield f"/dev/dri/{path.name}", path.parent.parent.name


def _content(path: pathlib.Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def usage(tracker: Any) -> tuple[Size, Cells]:
    """Return what Nova's tracker has written down as used of its only compute node."""
    (node,) = tracker.compute_nodes.values()
    cells: Cells = {}
    if node.numa_topology:
        cells = _cells_of(objects.NUMATopology.obj_from_db_obj(node.numa_topology))
    return Size(node.vcpus_used, node.memory_mb_used, node.local_gb_used), cells


def reserved() -> Size:
    """Return what Nova's options keep of each host for itself."""
    disk = CONF.reserved_host_disk_mb / 1024
    return Size(CONF.reserved_host_cpus, CONF.reserved_host_memory_mb, disk)


def published(
    tracker: Any,
) -> tuple[Mapping[str, frozenset[str]], Mapping[str, frozenset[str]]]:
    """Return the devices of each provider that Nova's tracker has, and those that it would give.

    The latter are what a claim takes from (``ResourceTracker._claim_resources``).
    """
    devices, free = dict[str, frozenset[str]](), dict[str, frozenset[str]]()
    # After a start whose first look at Placement failed there is none until the next period.
    for uuid in tracker.provider_tree.get_provider_uuids() if tracker.provider_tree else ():
        for resource_class, pool in tracker.provider_tree.data(uuid).resources.items():
            if resource_class in _DEVICE_CLASSES:
                left = pool - tracker.assigned_resources[uuid][resource_class]
                devices[uuid] = frozenset(item.identifier for item in pool)
                free[uuid] = frozenset(item.identifier for item in left)
    return devices, free


def host(name: str, system: System, manager: Any, left: Iterable[tuple[str, str]] = ()) -> Host:
    """Return a host whose nova-compute runs in this process.

    :param left: what of guests that are gone is on the host
    """
    driver, tracker = manager.driver, manager.rt
    devices, free = published(tracker)
    size, cells = usage(tracker)
    cards = frozenset(system.cards())
    # A reason is looked for only where a device is neither free nor somebody's.
    assigned = {
        item.identifier
        for classes in tracker.assigned_resources.values()
        for items in classes.values()
        for item in items
    }
    offers = frozenset(
        system.card(identifier.partition("/")[0])
        for identifiers in devices.values()
        for identifier in identifiers
    )
    unexplained = set().union(*devices.values()) - assigned - set().union(*free.values())
    (node,) = tracker.compute_nodes.values()
    return Host(
        name=name,
        provider=node.uuid,
        is_up=True,
        is_container=CONF.libvirt.virt_type == CONTAINERS,
        domains=domains(driver._host.get_connection(), system),
        cards=cards,
        offers=offers,
        published=devices,
        free=free,
        claimed=_claimed(driver),
        reasons=reasons(driver) if unexplained or not cards <= offers else {},
        tasks=_tasks(manager),
        size=size,
        reserved=reserved(),
        cells=cells,
        left=tuple(left),
    )


def reasons(driver: Any) -> Mapping[str, str]:
    """Return why ``nova-gpu list`` says that cards are not offered, by their addresses."""
    if not hasattr(driver, "_gpus"):
        return {}
    try:
        rows = shown.read(driver._gpus._discovery)
    except exception.DiscoveryFailed:
        return {}  # a host without sysfs, which has no cards to explain
    return {str(row.gpu.address): reason for row in rows if (reason := row.reason or row.dirty)}


def _claimed(driver: Any) -> frozenset[str]:
    gpus = getattr(driver, "_gpus", None)
    return frozenset(map(str, gpus.ledger.now.claims)) if gpus else frozenset()


def absent(name: str, provider: str, connection: Any, system: System) -> Host:
    """Return a host whose nova-compute does not run: nobody but libvirt says what is there."""
    is_container = CONF.libvirt.virt_type == CONTAINERS
    return Host(name, provider, False, is_container, domains(connection, system))


def _tasks(manager: Any) -> tuple[str, ...]:
    """Nova 34 waits for these at a stop, for as long as it waits for anything."""
    tasks = getattr(manager, "_in_progress_tasks", {}).values()
    return tuple(
        f"{task['name']} of {task['instance_uuid']}"
        for task in tasks
        # Nova ends it in finish_resize alone, which is not called where the source fails.
        if task["name"] != "prep_resize_at_dest"
    )


def total(amounts: Iterable[Amounts]) -> collections.Counter[str]:
    """Return the sum of *amounts* by class."""
    counted: collections.Counter[str] = collections.Counter()
    for amount in amounts:
        counted.update(amount)
    return counted
