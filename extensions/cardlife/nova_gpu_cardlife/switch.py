# SPDX-License-Identifier: Apache-2.0
"""Whether cards are tested and repaired. Only then the rest is imported, which takes 30 ms."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nova_gpu.conf import CONF

if TYPE_CHECKING:
    from nova_gpu.host.roots import Roots
    from nova_gpu.host.state.quarantine import Identities
    from nova_gpu.virt.card_gates import Gate


def of_host(roots: Roots, identities: Identities | None) -> Gate | None:
    """Return the gate of the host, ``None`` if cards are not tested.

    It raises what :func:`nova_gpu_cardlife.tests_of_cards.of_host` does.
    """
    if not CONF.gpu.card_test:
        return None
    gate: Gate = importlib.import_module("nova_gpu_cardlife.tests_of_cards").of_host(
        roots, identities
    )
    return gate


def repairs_of_host(roots: Roots, identities: Identities | None) -> Gate | None:
    """Return the gate of the host that repairs cards, ``None`` if cards are not repaired.

    It raises what :func:`nova_gpu_cardlife.repairs_of_cards.of_host` does.
    """
    if not CONF.gpu.card_repair:
        return None
    gate: Gate = importlib.import_module("nova_gpu_cardlife.repairs_of_cards").of_host(
        roots, identities
    )
    return gate
