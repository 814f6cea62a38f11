# SPDX-License-Identifier: Apache-2.0
"""The aliases of ``[pci]alias``, and the cards and functions of this host that they give."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nova.compute import pci_placement_translator as translator
from nova.objects import fields
from oslo_serialization import jsonutils

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import sriov
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu.virt.usage import stock_records
from nova_gpu_migrate.core import adoption_plan
from nova_gpu_migrate.core.stock_holding import Alias, StockProvider

_PHYSICAL, _VIRTUAL = str(fields.PciDeviceType.SRIOV_PF), str(fields.PciDeviceType.SRIOV_VF)
# What of an alias says nothing of a device, and what Placement compares instead of Nova's pools
_NO_FACTS = frozenset({"name", "numa_policy", "capability_type", *stock_records.NOTES})
_CLASS, _TRAITS = "resource_class", "traits"


def configured(texts: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Return what each alias asks for, by name, in the words of a request (``dev_type``).

    Nova's own reader (``nova.pci.request.get_alias_from_config``) judges all of them by options of
    the scheduler, which a compute host does not have.

    :param texts: the values of ``[pci]alias``; what is no JSON object with a name is left out,
        because Nova boots no flavor with it
    """
    specs: dict[str, list[dict[str, Any]]] = {}
    for text in texts:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            spec = jsonutils.loads(text)
            name = spec.pop("name").strip()
            if device_type := spec.pop("device_type", None):
                spec["dev_type"] = device_type
            specs.setdefault(name, []).append(spec)
    return specs


@dataclasses.dataclass(frozen=True, slots=True)
class Functions:
    """The cards and functions that aliases may give, and what Nova compares with a request."""

    cards: Mapping[PciAddress, Product]
    vgpus: Mapping[PciAddress, Slot]
    companions: Collection[PciAddress]
    facts: Mapping[PciAddress, Mapping[str, Any]]

    def given_by(self, specs_by_name: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Alias]:
        """Return the aliases that give some of the functions, as Nova matches them."""
        aliases = []
        for name, specs in sorted(specs_by_name.items()):
            functions = sorted(item for item, facts in self.facts.items() if _gives(specs, facts))
            products = {self.cards[at].key: self.cards[at] for at in functions if at in self.cards}
            types = {self.vgpus[at].type_id: self.vgpus[at] for at in functions if at in self.vgpus}
            alike = len(products) + len(types) == 1
            words = adoption_plan.words([*products.values()], types.values()) if alike else {}
            if functions:
                own = tuple(item for item in functions if item not in self.companions)
                others = tuple(item for item in functions if item in self.companions)
                aliases.append(Alias(name, own, words, others))
        return aliases


def read(
    gpus: Iterable[GPU],
    slots: Iterable[Slot],
    companions: Collection[PciAddress],
    roots: Roots,
    device_spec: DeviceSpec,
    providers: Mapping[PciAddress, StockProvider] = MappingProxyType({}),
) -> Functions:
    """Read what aliases are compared with.

    :param slots: those of vGPUs at virtual functions
    :param companions: other functions of *gpus* that stock Nova may give
    :param device_spec: ``[pci]device_spec``, whose tags an alias may ask for
    :param providers: stock Nova's, which have these once a card is not in the option any more
    :raises OSError, ValueError: if a function's PCI ids cannot be read
    """
    cards = {gpu.address: gpu.product for gpu in gpus}
    vgpus = {slot.parent: slot for slot in slots}
    facts = {
        **{card: _facts(card, product.key, roots, device_spec) for card, product in cards.items()},
        **{
            item: _facts(item, ":".join(sysfs.ids(sysfs.device(item, roots))), roots, device_spec)
            for item in (*vgpus, *companions)
        },
    }
    for function in facts.keys() & providers.keys():
        provider = providers[function]
        if device_spec.obstacle([function], roots) is None and provider.resource_classes:
            own = {_CLASS: min(provider.resource_classes), _TRAITS: provider.traits}
            facts[function] = {**facts[function], **own}
    return Functions(cards, vgpus, companions, facts)


def _facts(
    function: PciAddress, product: str, roots: Roots, device_spec: DeviceSpec
) -> dict[str, Any]:
    """Return what a request is compared with: Nova's pool of the function, and its provider."""
    vendor_id, product_id = product.split(":")
    tags = device_spec.tags(function, roots)
    return {
        **tags,
        "vendor_id": vendor_id,
        "product_id": product_id,
        "dev_type": device_type_of(function, roots),
        _CLASS: translator.get_resource_class(tags.get(_CLASS), vendor_id, product_id),
        _TRAITS: translator.get_traits(tags.get(_TRAITS, "")),
    }


def _gives(specs: Iterable[Mapping[str, Any]], facts: Mapping[str, Any]) -> bool:
    """Return whether one of an alias' *specs* matches a function, by the keys that it has alone.

    Without a type Nova gives all but functions of ``type-PF``
    (``PciDeviceStats._filter_pools_for_unrequested_pfs``). An alias without ids goes by its class.
    """
    alternatives = tuple(specs)
    if facts["dev_type"] == _PHYSICAL and all("dev_type" not in spec for spec in alternatives):
        return False
    return any(_matches(spec, facts) for spec in alternatives)


def _matches(spec: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    if not spec.keys() & {"vendor_id", "product_id", _CLASS}:
        return False  # Nova reads no such alias.
    for key, value in spec.items():
        if key == _CLASS:
            fits = translator.get_resource_class(value, "", "") == facts[_CLASS]
        elif key == _TRAITS:
            fits = translator.get_traits(value) <= facts[_TRAITS]
        else:
            fits = key in _NO_FACTS or str(value).lower() == str(facts.get(key)).lower()
        if not fits:
            return False
    return True


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
