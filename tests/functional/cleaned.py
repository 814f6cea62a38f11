# SPDX-License-Identifier: Apache-2.0
"""What is cleaned on which host, beside a command that says so and can be made to fail."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import fixtures

from nova_gpu.core.model import GPU
from nova_gpu.virt.lifecycle import cleaning
from tests.fixtures import daemons
from tests.functional import base

# Programs of the machine's that are root's. The card's file in the folder makes the command fail.
# In an option's value a dollar sign is written twice.
_SCRIPT = """
echo "$$NOVA_GPU_PRODUCT $$NOVA_GPU_MODE $$NOVA_GPU_MIG_INSTANCE"
if test -e "$$0/stopped"; then
    touch "$$0/$$NOVA_GPU_ADDRESS.begun"
    while test -e "$$0/stopped"; do sleep 0.1; done
fi
test ! -e "$$0/$$NOVA_GPU_ADDRESS"
"""


class Cleaned(fixtures.Fixture):
    """``cards``: "host address" of each card that was cleaned, as often as it was.

    Without the first time of each, when its host was started: nothing was known of it then.
    Privileged functions run in this process.
    """

    def __init__(self, case: base.GPUServersTestBase) -> None:
        super().__init__()
        self._case = case
        self.cards: list[str] = []
        self._known: set[str] = set()

    def _setUp(self) -> None:
        self.useFixture(daemons.Daemons())
        self._stained = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        command = ["/bin/sh", "-c", _SCRIPT, str(self._stained)]
        self._case.flags(clean_command=command, group="gpu")
        clean = cleaning.Cleaning.clean

        def cleaned(this: Any, card: GPU) -> bool:
            roots = (name for name, host in self._case.hosts.items() if host.roots == this._roots)
            name = f"{next(roots)} {card.address}"
            if name in self._known:
                self.cards.append(name)
            self._known.add(name)
            return clean(this, card)

        self.useFixture(fixtures.MockPatchObject(cleaning.Cleaning, "clean", cleaned))

    def stain(self, address: str) -> None:
        """From now on the command fails for the card at *address* of any host."""
        (self._stained / address).touch()

    def wipe(self, address: str) -> None:
        (self._stained / address).unlink()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """What is begun meanwhile does not end before."""
        (self._stained / "stopped").touch()
        try:
            yield
        finally:
            (self._stained / "stopped").unlink()

    def begun(self) -> set[str]:
        """The addresses of the cards for which the command was begun while it was stopped"""
        return {path.stem for path in self._stained.glob("*.begun")}
