# SPDX-License-Identifier: Apache-2.0
"""The aliases of ``[pci]alias``, and the cards of this host that they give."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from nova.objects import fields
from oslo_serialization import jsonutils

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import sriov
from nova_gpu.stock.core import takeover
from nova_gpu.stock.core.holding import Alias


def read(texts: Iterable[str], gpus: Iterable[GPU], roots: Roots) -> list[Alias]:
    """Return the aliases that give some of *gpus*, by their PCI ids and their type.

    Nova's own reader (``nova.pci.request.get_alias_from_config``) judges all of them by options of
    the scheduler, which a compute host does not have.

    :param texts: the values of ``[pci]alias``; what is no JSON object with a name is left out,
        because Nova boots no flavor with it
    """
    kinds: dict[str, set[tuple[str, str]]] = {}
    for text in texts:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            spec = jsonutils.loads(text)
            product = f"{spec['vendor_id']}:{spec['product_id']}".lower()
            # Without a type Nova gives none that has virtual functions (_filter_pools_for_pfs).
            device_type = spec.get("device_type") or fields.PciDeviceType.STANDARD
            kinds.setdefault(spec["name"].strip(), set()).add((product, device_type))
    cards = sorted(gpus, key=lambda gpu: gpu.address)
    kind_of = {gpu: (gpu.product.key, device_type_of(gpu.address, roots)) for gpu in cards}
    aliases = []
    for name in sorted(kinds):
        if own_cards := [gpu for gpu in cards if kind_of[gpu] in kinds[name]]:
            products = {gpu.product.key: gpu.product for gpu in own_cards}
            words = takeover.words(list(products.values()), ()) if len(products) == 1 else {}
            aliases.append(Alias(name, tuple(gpu.address for gpu in own_cards), words))
    return aliases


def device_type_of(card: PciAddress, roots: Roots) -> str:
    """Return the type by which Nova records a whole card, as libvirt tells it.

    A card that can have virtual functions is one of type ``type-PF``, with any or none enabled.
    """
    has_functions = sriov.most(sysfs.device(card, roots)) > 0
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
