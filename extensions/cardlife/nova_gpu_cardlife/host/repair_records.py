# SPDX-License-Identifier: Apache-2.0
"""Records of repairs, one file per card that needed one.

For example::

    0000:88:00.0.json
    {"state": "waiting", "step": "bus-reset", "fault": "its driver asks for a recovery action",
     "boot_id": "1f0c...", "tries": [1796082011.2], "waits": "instances have ...", "remedy": "...",
     "product": "10de:2335", "identity": {"nvidia": "GPU-4a2b..."}}

nova-compute writes them, and ``nova-gpu test`` removes one. A record is that of the card at its
address, unless identifiers or the product say that it is another card.
"""

from __future__ import annotations

import dataclasses
import pathlib

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Repair
from nova_gpu.host.pci import identity
from nova_gpu.host.pci.identity import Identity
from nova_gpu.host.state import files
from nova_gpu_cardlife.core import ladder
from nova_gpu_cardlife.core.ladder import Record

_MODE = 0o644


def read(folder: pathlib.Path, card: GPU, own: Identity) -> Record | None:
    """Return the repair of *card*, ``None`` if it has none, or if the record is another card's.

    :param own: the identifiers of *card*, as far as they are known
    :raises OSError, ValueError: if it cannot be read
    """
    path = files.of_card(folder, card.address)
    try:
        content = files.read_json(path)
        texts = {name: content[name] for name in ("fault", "boot_id", "waits", "remedy")}
        if not all(isinstance(text, str) for text in texts.values()):
            raise TypeError("fault, boot_id, waits and remedy must be texts")
        state, step = ladder.State(content["state"]), Repair(content["step"])
        record = Record(state, step, tries=tuple(map(float, content["tries"])), **texts)
        known = {str(kind): str(number) for kind, number in content["identity"].items()}
        if content["product"] != card.product.key or identity.same(known, own) is False:
            return None
    except FileNotFoundError:
        return None
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{path} is no record of a repair: {error!r}") from error
    return record


def write(folder: pathlib.Path, card: GPU, own: Identity, record: Record) -> None:
    """Write the repair of *card*.

    :raises OSError: if it cannot be written
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    content = {
        **dataclasses.asdict(record),
        "state": record.state.value,
        "step": record.step.value,
        "product": card.product.key,
        "identity": dict(own),
    }
    files.write_json(files.of_card(folder, card.address), content, mode=_MODE, indent=1)


def remove(folder: pathlib.Path, card: PciAddress) -> None:
    """Remove the record of the card, which ends its repair."""
    files.remove(files.of_card(folder, card))
