# SPDX-License-Identifier: Apache-2.0
"""The aliases of ``[pci]alias``, and the cards and functions of this host that they give."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator

from nova.objects import fields
from oslo_serialization import jsonutils

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import sriov
from nova_gpu.stock.core import takeover
from nova_gpu.stock.core.holding import Alias

_VIRTUAL = str(fields.PciDeviceType.SRIOV_VF)


def read(
    texts: Iterable[str],
    gpus: Iterable[GPU],
    slots: Iterable[Slot],
    companions: Collection[PciAddress],
    roots: Roots,
) -> list[Alias]:
    """Return the aliases that give some of *gpus* or functions, by their PCI ids and their type.

    Nova's own reader (``nova.pci.request.get_alias_from_config``) judges all of them by options of
    the scheduler, which a compute host does not have.

    :param texts: the values of ``[pci]alias``; what is no JSON object with a name is left out,
        because Nova boots no flavor with it
    :param slots: those of vGPUs at virtual functions
    :param companions: other functions of *gpus* that stock Nova may give
    :raises OSError, ValueError: if a function's PCI ids cannot be read
    """
    kinds: dict[str, set[tuple[str, str]]] = {}
    for name, product, device_type in _parse(texts):
        kinds.setdefault(name, set()).add((product, device_type))
    cards = {gpu.address: gpu.product for gpu in gpus}
    vgpus = {slot.parent: slot for slot in slots}
    kind_by_function = {
        **{card: (product.key, device_type_of(card, roots)) for card, product in cards.items()},
        **{
            item: (":".join(sysfs.ids(sysfs.device(item, roots))), device_type_of(item, roots))
            for item in (*vgpus, *companions)
        },
    }
    aliases = []
    for name in sorted(kinds):
        functions = sorted(item for item, kind in kind_by_function.items() if kind in kinds[name])
        products = {cards[item].key: cards[item] for item in functions if item in cards}
        types = {vgpus[item].type_id: vgpus[item] for item in functions if item in vgpus}
        alike = len(products) + len(types) == 1
        words = takeover.words([*products.values()], types.values()) if alike else {}
        if functions:
            own = tuple(item for item in functions if item not in companions)
            others = tuple(item for item in functions if item in companions)
            aliases.append(Alias(name, own, words, others))
    return aliases


def _parse(texts: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the PCI ids and the device type of each alias that Nova can read."""
    for text in texts:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            spec = jsonutils.loads(text)
            product = f"{spec['vendor_id']}:{spec['product_id']}".lower()
            # Without a type Nova gives none that has virtual functions (_filter_pools_for_pfs).
            device_type = spec.get("device_type") or str(fields.PciDeviceType.STANDARD)
            yield spec["name"].strip(), product, device_type


def device_type_of(function: PciAddress, roots: Roots) -> str:
    """Return the type by which Nova records a card or a function, as libvirt tells it.

    A card that can have virtual functions is one of type ``type-PF``, with any or none enabled.
    """
    device = sysfs.device(function, roots)
    if sysfs.link(device, "physfn"):
        return _VIRTUAL
    has_functions = sriov.most(device) > 0
    return str(fields.PciDeviceType.SRIOV_PF if has_functions else fields.PciDeviceType.STANDARD)


@contextlib.contextmanager
def accepted() -> Iterator[None]:
    """Let Nova's own reader accept ``[pci]alias`` on a host without the scheduler's options.

    With ``[filter_scheduler]pci_in_placement`` it refuses several devices of one name, without it
    those by a resource class alone. A cloud has the one or the other.
    """
    before = CONF.filter_scheduler.pci_in_placement
    by_class = any('"vendor_id"' not in text for text in CONF.pci.alias)
    CONF.set_override("pci_in_placement", by_class, "filter_scheduler")
    try:
        yield
    finally:
        CONF.set_override("pci_in_placement", before, "filter_scheduler")
