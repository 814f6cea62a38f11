# SPDX-License-Identifier: Apache-2.0
"""What the checks of ``nova-gpu-status`` read, and their results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from nova import context as nova_context
from nova import objects, rpc
from nova.db.api import api as api_db
from nova.db.main import api as main_db
from oslo_upgradecheck import upgradecheck
from oslo_utils import importutils

from nova_gpu.cmd import card_facts
from nova_gpu.conf import CONF
from nova_gpu.core import boundary, exception
from nova_gpu.host.pci import acs
from nova_gpu.host.roots import Roots

Result = upgradecheck.Result
Code = upgradecheck.Code
_ELSEWHERE = "Checked on controllers only, which have [api_database]connection."
_MOST_SHOWN = 20
_profiler = importutils.try_import("osprofiler.opts")


def _connect() -> None:
    """Initialise Nova's database connections in this process, as Nova's own commands do."""
    objects.register_all()
    # Nova reads osprofiler's options to connect, if that is installed, and oslo.messaging's to read
    # a cell. Its own commands have registered both when they parsed the command line
    # (nova.config.parse_args).
    if _profiler is not None:
        _profiler.set_defaults(CONF)
    rpc.init(CONF)
    # An operator waits, so one attempt replaces ten attempts with ten seconds in between.
    for group in ("database", "api_database"):
        CONF.set_override("max_retries", 1, group)
        CONF.set_override("retry_interval", 0, group)
    logging.getLogger("oslo_db.sqlalchemy.engines").setLevel(logging.ERROR)
    main_db.configure(CONF)
    api_db.configure(CONF)


def in_cells() -> Iterator[nova_context.RequestContext]:
    """Yield a context for the database of each cell but cell0."""
    context = nova_context.get_admin_context()
    for cell in objects.CellMappingList.get_all(context):
        if not cell.is_cell0():
            with nova_context.target_cell(context, cell) as in_cell:
                yield in_cell


def warning(text: str) -> upgradecheck.Result:
    return Result(Code.WARNING, text)


def listed(
    lines: Sequence[str], heading: str, code: upgradecheck.Code = Code.WARNING
) -> upgradecheck.Result:
    """Return success without *lines*, else *code* with the *heading* and the first of them."""
    if not lines:
        return Result(Code.SUCCESS)
    more = [f"and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else []
    # The library rewraps the text of its table, so line breaks would be lost.
    text = "; ".join([*lines[:_MOST_SHOWN], *more])
    return Result(code, f"{heading} {text}")


class Checks(upgradecheck.UpgradeCommands):
    """Checks that read Nova's databases and this host.

    :param connect: initialise Nova's database connections in this process
    """

    def __init__(self, connect: Callable[[], None] = _connect) -> None:
        super().__init__()
        self._connect = connect
        self._connected = False

    def _is_controller(self) -> bool:
        return bool(CONF.api_database.connection)

    def asked(
        self, ask: Callable[[], list[str]], heading: str, code: upgradecheck.Code = Code.WARNING
    ) -> upgradecheck.Result:
        """Return the lines that *ask* finds in Nova's databases; controllers only have these."""
        if not self._is_controller():
            return Result(Code.SUCCESS, _ELSEWHERE)
        try:
            with boundary.crossed():
                if not self._connected:
                    self._connect()
                    self._connected = True
                return listed(ask(), heading, code)
        except boundary.Failure as error:
            return warning(
                f"Nova's databases do not answer: {error.first_line}; see [api_database]connection."
            )

    def unseparated(self, heading: str) -> upgradecheck.Result:
        """Return a warning with the cards of this host that ports do not separate."""
        if CONF.libvirt.virt_type == "lxc" or CONF.gpu.allow_ports_without_acs:
            return Result(Code.SUCCESS)
        try:
            roots = Roots.of(CONF.gpu)
            ports = acs.ports((card.address for card in card_facts.find()), roots)
        except exception.GPUError as error:
            return warning(f"Cannot tell whether ports separate this host's cards: {error}")
        faults = {**dict.fromkeys(ports, "can be read by root only"), **acs.read(ports, roots)}
        lines = [
            f"{', '.join(map(str, sorted(ports[port])))}: port {port} {fault}"
            for port, fault in faults.items()
            if fault
        ]
        return listed(lines, heading)
