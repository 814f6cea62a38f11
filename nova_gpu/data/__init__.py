# SPDX-License-Identifier: Apache-2.0
"""Data files of the package: the table of known GPU products."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator


def products() -> Iterator[tuple[str, str, str, str]]:
    """Yield vendor_id, product_id, architecture and name of each known product.

    An unknown architecture is an empty string.
    """
    text = importlib.resources.files(__name__).joinpath("gpu-products.tsv").read_text()
    for line in text.splitlines():
        if not line.startswith("#"):
            vendor_id, product_id, architecture, _chip, name = line.split("\t")
            yield vendor_id, product_id, architecture, name
