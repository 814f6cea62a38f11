# SPDX-License-Identifier: Apache-2.0
"""Whether cards have passports. The rest is imported only then."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nova_gpu.conf import CONF

if TYPE_CHECKING:
    from nova_gpu.host.roots import Roots
    from nova_gpu.host.state.quarantine import Identities
    from nova_gpu.virt.card_gates import Gate


def of_host(roots: Roots, identities: Identities | None) -> Gate | None:
    """Return the passports of the host's cards as a gate, ``None`` if they have none.

    It raises what :func:`nova_gpu_cardlife.passports.of_host` does.
    """
    if not CONF.gpu.passport_folder:
        return None
    gate: Gate = importlib.import_module("nova_gpu_cardlife.passports").of_host(roots, identities)
    return gate
