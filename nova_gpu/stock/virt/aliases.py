# SPDX-License-Identifier: Apache-2.0
"""The aliases of ``[pci]alias``, and the cards of this host that they give."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from oslo_serialization import jsonutils

from nova_gpu.core.model import GPU
from nova_gpu.stock.core import takeover
from nova_gpu.stock.core.holding import Alias


def read(texts: Iterable[str], gpus: Iterable[GPU]) -> list[Alias]:
    """Return the aliases that give some of *gpus*, by their PCI ids.

    Nova's own reader (``nova.pci.request.get_alias_from_config``) judges all of them by options of
    the scheduler, which a compute host does not have.

    :param texts: the values of ``[pci]alias``; what is no JSON object with a name is left out,
        because Nova boots no flavor with it
    """
    ids: dict[str, set[str]] = {}
    for text in texts:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            spec = jsonutils.loads(text)
            product = f"{spec['vendor_id']}:{spec['product_id']}".lower()
            if spec.get("device_type") != "type-VF":  # of no whole card
                ids.setdefault(spec["name"].strip(), set()).add(product)
    cards = sorted(gpus, key=lambda gpu: gpu.address)
    aliases = []
    for name in sorted(ids):
        if own_cards := [gpu for gpu in cards if gpu.product.key in ids[name]]:
            products = {gpu.product.key: gpu.product for gpu in own_cards}
            words = takeover.words(list(products.values()), ()) if len(products) == 1 else {}
            aliases.append(Alias(name, tuple(gpu.address for gpu in own_cards), words))
    return aliases
