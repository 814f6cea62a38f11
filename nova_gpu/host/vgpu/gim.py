# SPDX-License-Identifier: Apache-2.0
"""AMD's module gim: which cards share their memory over XGMI, and the partition modes of cards.

A virtual function reaches the memory of all cards in its *sharing group*. Source:
amd/MxGPU-Virtualization, libgv/core/hw/AI/mi300/mi300_xgmi.c and gim_shim/gim_config.c. A group
that ``amd-smi`` has set at run time is not in sysfs. The partition modes are
(gim_shim/sysfs/gim_monitor.c); gim changes them only while no function of the cards is in use.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator

from nova_gpu.core import vendors
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host import child_process
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import sriov

_PARAMETER = "fb_sharing_mode"
_LARGEST = 8
_SIZES = (1, 2, 4, _LARGEST)
_REMEDY = (
    "name the cards of each group in [gpu]link_groups, and one guest at a time gets a group; or "
    f"load gim so that no card shares memory (modprobe gim {_PARAMETER}=1)"
)

# The files with a card's modes, which root alone can read, and their texts. Nothing else there may
# be read on suspicion: to read reset_gpu is to reset the card.
_MODE_FILES = ("spatial_partition_mode", "memory_partition_mode")
_MODES = re.compile(r"(?P<compute>[A-Z]PX)\nmemory_partition_mode: (?P<memory>NPS[0-9])\n")
# The modes of a card with so many functions until somebody sets others
# (mi300_nbio_get_accelerator_partition_mode_default_setting in mi300_nbio.c)
_USUAL_MODES = {1: "spx-nps1", 2: "dpx-nps1", 4: "qpx-nps1", 8: "cpx-nps1"}


def shows_modes(card: PciAddress, roots: Roots) -> bool:
    return os.path.exists(f"{sysfs.device(card, roots)}/{_MODE_FILES[0]}")


def modes(cards: Iterable[PciAddress], roots: Roots, timeout_s: float) -> dict[PciAddress, str]:
    """Return the compute and memory partition mode of each card, such as cpx-nps4. Needs root.

    A card without such modes is left out.

    :raises Failed: if they cannot be read
    """
    texts = {}
    for card in cards:
        paths = [f"{sysfs.device(card, roots)}/{name}" for name in _MODE_FILES]
        texts[card] = child_process.run(["cat", *paths], timeout_s).decode(errors="replace")
    matches = {card: match for card, text in texts.items() if (match := _MODES.match(text))}
    return {c: f"{match['compute']}-{match['memory']}".lower() for c, match in matches.items()}


def unusual(mode: str, functions: int) -> str:
    """Return *mode* unless it follows from the number of functions; else nothing."""
    return "" if mode == _USUAL_MODES.get(functions) else mode


def is_alone(gpu: GPU, functions: int, roots: Roots) -> bool:
    """Return whether gim keeps the functions of other cards from the memory of *gpu*."""
    return gpu.product.vendor_id == vendors.AMD and _group_size(gpu, functions, roots) == 1


def undeclared(gpu: GPU, functions: int, cards: Iterable[GPU], roots: Roots) -> str | None:
    """Return why guests cannot get the functions of *gpu*, and the remedy.

    The reason is that ``[gpu]link_groups`` does not name all cards that share its memory.
    """
    size = _group_size(gpu, functions, roots)
    number = sum(map(_may_have_xgmi, cards))
    if size == 1 or number < 2 or len(gpu.links) + 1 >= min(size, number):
        return None
    return (
        f"gim may let up to {size} cards share their memory over XGMI ({_PARAMETER}), and "
        f"[gpu]link_groups does not name those of its group; {_REMEDY}"
    )


def _may_have_xgmi(gpu: GPU) -> bool:
    """Return whether *gpu* is AMD's and for servers. An unknown one may be."""
    return gpu.product.vendor_id == vendors.AMD and (
        gpu.product.architecture is None or gpu.product.architecture.startswith("cdna")
    )


def _group_size(gpu: GPU, functions: int, roots: Roots) -> int:
    """Return how many cards a sharing group has at most, the largest number if it is unknown.

    gim makes groups of one card where cards have several functions, and by default the largest
    groups where they have one. Where that differs between cards, whose numbers of functions may
    differ, it makes the largest groups of all (mi300_xgmi_sanitize_hive_fb_sharing_config). The
    parameter is an array, so its text is empty unless it was set.
    """
    if not _may_have_xgmi(gpu):
        return 1
    try:
        size = int(sysfs.attribute(str(roots.sysfs / "module/gim/parameters"), _PARAMETER))
    except (OSError, ValueError):
        size = 0
    numbers = {functions, *_numbers(roots)}
    if size == 1 or 1 not in numbers:
        return 1
    return size if size in _SIZES and numbers == {1} else _LARGEST


def _numbers(roots: Roots) -> Iterator[int]:
    """Yield the number of functions of each card that gim has, those without any left out."""
    folder = roots.sysfs / "bus/pci/drivers/gim"
    for device in folder.glob("*:*"):
        with contextlib.suppress(OSError):  # gone meanwhile
            if number := len(sriov.virtual_functions(str(device))):
                yield number
