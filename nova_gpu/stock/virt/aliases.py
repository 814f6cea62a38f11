# SPDX-License-Identifier: Apache-2.0
"""The aliases of ``[pci]alias``, and the cards of this host that they give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nova import exception as nova_exception
from nova import objects
from nova.pci import request as pci_request
from oslo_serialization import jsonutils

from nova_gpu.core.model import GPU
from nova_gpu.stock.core import takeover
from nova_gpu.stock.core.holding import Alias


def read(texts: Sequence[str], gpus: Iterable[GPU]) -> list[Alias]:
    """Return the aliases that give some of *gpus*, by their PCI ids.

    An alias that Nova refuses is left out: no flavor with it boots.

    :param texts: the values of ``[pci]alias``, which Nova's own code parses
    """
    cards = sorted(gpus, key=lambda gpu: gpu.address)
    aliases = []
    for name in sorted(set(_names(texts))):
        flavor = objects.Flavor(extra_specs={takeover.ALIAS: f"{name}:1"})
        try:
            requests = pci_request.get_pci_requests_from_flavor(flavor).requests
        except nova_exception.NovaException:
            continue
        ids = {
            f"{spec.get('vendor_id', '').lower()}:{spec.get('product_id', '').lower()}"
            for request in requests
            for spec in request.spec
        }
        if own_cards := [gpu for gpu in cards if gpu.product.key in ids]:
            products = {gpu.product.key: gpu.product for gpu in own_cards}
            words = takeover.words(list(products.values()), ()) if len(products) == 1 else {}
            aliases.append(Alias(name, tuple(gpu.address for gpu in own_cards), words))
    return aliases


def _names(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        try:
            yield str(jsonutils.loads(text)["name"])
        except (ValueError, TypeError, KeyError):
            continue  # nova-api refuses to start with it
