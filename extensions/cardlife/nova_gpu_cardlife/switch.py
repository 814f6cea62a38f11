# SPDX-License-Identifier: Apache-2.0
"""Which parts of the extension are on. Only those are imported, which takes 30 ms."""

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
    return _made("tests_of_cards", roots, identities) if CONF.gpu.card_test else None


def repairs_of_host(roots: Roots, identities: Identities | None) -> Gate | None:
    """Return the gate of the host that repairs cards, ``None`` if cards are not repaired.

    It raises what :func:`nova_gpu_cardlife.repairs_of_cards.of_host` does.
    """
    return _made("repairs_of_cards", roots, identities) if CONF.gpu.card_repair else None


def passports_of_host(roots: Roots, identities: Identities | None) -> Gate | None:
    """Return the passports of the host's cards as a gate, ``None`` if they have none.

    It raises what :func:`nova_gpu_cardlife.passports.of_host` does.
    """
    is_on = CONF.gpu.passport_folder or CONF.gpu.passport_most_returns
    return _made("passports", roots, identities) if is_on else None


def _made(module: str, roots: Roots, identities: Identities | None) -> Gate:
    gate: Gate = importlib.import_module(f"nova_gpu_cardlife.{module}").of_host(roots, identities)
    return gate
