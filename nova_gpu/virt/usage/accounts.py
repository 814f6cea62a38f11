# SPDX-License-Identifier: Apache-2.0
"""The GPU seconds of each instance on this host, for ``gpu.exists`` and ``nova-gpu exporter``.

An instance's time runs on the host that Nova's database names as its host, for the devices that the
database assigns to it there: not for those that a move has claimed or keeps. So two hosts never
count the same time, and time of which nothing is known is not counted. Time is the kernel's
monotonic clock: setting the host's clock changes none of it, and it ends when the host goes down.

The accounts are in one file in the state path. They outlive the service, and the exporter, another
process, can read them. No decision about devices depends on them.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import pathlib
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Any

from oslo_log import log as logging

from nova_gpu.core import boundary, json_text
from nova_gpu.host.state import files

LOG = logging.getLogger(__name__)

_NAME = "gpu-usage.json"
_HOUR_S = 3600
# A closed account is reported this often, the last times without new seconds: so its total arrives
# although a broker was away for hours.
_REPEATS = 4
_PLACES = 3  # of a second: the sum of what was reported is then exact
# Some 30,000 accounts: more than instances that live for a minute each leave in four hours
_LARGEST = 16 << 20

Key = tuple[str, str, str | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """What one instance has or had here of one product, or of one vGPU type of a product.

    ``usage_id``: stays while the account is open; a later account of the instance has another one.
    ``addresses``: the devices whose time runs now. ``seconds``: the GPU seconds since the account
    was opened. ``reported_seconds``: those of them that ``gpu.exists`` had. ``audits``: how many
    audits have found it closed.
    """

    instance_uuid: str
    project_id: str | None
    user_id: str | None
    product_id: str
    product: str | None
    architecture: str | None
    vgpu_type: str | None
    addresses: tuple[str, ...] = ()
    seconds: float = 0.0
    reported_seconds: float = 0.0
    audits: int = 0
    usage_id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def key(self) -> Key:
        return self.instance_uuid, self.product_id, self.vgpu_type

    def more(self, seconds: float) -> Account:
        return dataclasses.replace(self, seconds=self.seconds + seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class Audit:
    """A full hour of UTC: its begin and its end in ISO 8601, and how many seconds ago it ended."""

    begin: str
    end: str
    ago: float


class Accounts:
    """The open accounts of one host, and those closed since the last audit.

    :param folder: the state path
    :param boot_id: of the running kernel, empty if it is unknown
    :param clock: the time since the kernel's boot
    :param wall: the time of Unix, for the audits
    """

    def __init__(
        self,
        folder: pathlib.Path,
        boot_id: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._boot_id = folder / _NAME, boot_id
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._begins: dict[str, float] = {}  # of the time of an instance's new devices
        self._is_settled = False  # whether the database was read since the service started
        boot, at, accounts = _read(self._path)
        self._accounts = {account.key: account for account in accounts}
        # The time of all accounts is counted up to here.
        self._at = min(at, clock()) if boot_id and boot == boot_id else clock()

    def began(self, instance_uuid: str) -> None:
        """Note that the time of the instance's new devices begins now; it is this host's by now.

        Without this call it begins with the period that first has them.
        """
        with self._lock:
            self._begins[instance_uuid] = self._clock()

    def released(self, instance_uuid: str, addresses: Collection[str]) -> None:
        """End the devices' time now; that of an instance that no period has seen is dropped."""
        with self._lock:
            self._begins.pop(instance_uuid, None)
            # Until the database was read, when they ended is unknown.
            elapsed = self._clock() - self._at if self._is_settled else 0.0
            for key, account in self._accounts.items():
                if account.instance_uuid == instance_uuid:
                    left = tuple(item for item in account.addresses if item not in addresses)
                    ended = len(account.addresses) - len(left)
                    account = dataclasses.replace(account, addresses=left)
                    self._accounts[key] = account.more(ended * elapsed)
            self._write()

    def period(self, held: Iterable[Account]) -> list[tuple[Audit, Account, float]]:
        """Count the time since the last call, and return what ``gpu.exists`` must report.

        :param held: what instances have now by the database, as accounts without time
        :returns: for each hour that is over and each account: its GPU seconds in that hour. These
            are noted as reported before this returns, so that none is sent twice.
        """
        reports: list[tuple[Audit, Account, float]] = []
        with self._lock:
            now = self._clock()
            now_held = {account.key: account for account in held}
            before = {key: account.addresses for key, account in self._accounts.items()}

            def count(until: float) -> None:
                for key, account in now_held.items():
                    old = len({*before.get(key, ())}.intersection(account.addresses))
                    new = len(account.addresses) - old
                    begin = max(self._at, self._begins.get(account.instance_uuid, now))
                    more = old * (until - self._at) + new * max(0.0, until - begin)
                    self._accounts[key] = self._accounts.get(key, account).more(more)
                self._at = max(self._at, until)

            for audit in _audits(self._wall(), now - self._at):
                count(now - audit.ago)
                reports += self._report(audit, now_held.keys())
            count(now)
            for key, account in self._accounts.items():
                addresses = now_held[key].addresses if key in now_held else ()
                self._accounts[key] = dataclasses.replace(account, addresses=addresses)
            for account in now_held.values():
                self._begins.pop(account.instance_uuid, None)
            self._is_settled = True
            self._write()
        return reports

    def _report(self, audit: Audit, held: Collection[Key]) -> list[tuple[Audit, Account, float]]:
        """Note the time of all accounts as reported, and drop those closed for some hours."""
        reports = []
        for key, account in list(self._accounts.items()):
            seconds = round(account.seconds - account.reported_seconds, _PLACES)
            account = dataclasses.replace(
                account,
                reported_seconds=account.reported_seconds + seconds,
                audits=0 if key in held else account.audits + 1,
            )
            self._accounts[key] = account
            if account.reported_seconds > 0:
                reports.append((audit, account, seconds))
            if account.audits >= _REPEATS:
                del self._accounts[key]
        return reports

    def _write(self) -> None:
        content = {
            "boot_id": self._boot_id,
            "at": self._at,
            "accounts": [dataclasses.asdict(account) for account in self._accounts.values()],
        }
        try:
            with boundary.crossed():
                files.write_json(self._path, content)
        except boundary.Failure as error:
            LOG.warning(
                "Failed to write the GPU seconds of instances to %s, will retry in the next "
                "period: %s",
                self._path,
                error,
            )


def _audits(now: float, elapsed: float) -> list[Audit]:
    """Return the hours that ended in the *elapsed* seconds before *now*, the oldest first."""
    last = now - now % _HOUR_S
    count = max(0, math.ceil((elapsed - (now - last)) / _HOUR_S))
    ends = [last - _HOUR_S * number for number in reversed(range(count))]
    return [Audit(_iso(end - _HOUR_S), _iso(end), now - end) for end in ends]


def _iso(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()


def forget(folder: pathlib.Path) -> None:
    """Remove the accounts: an audit that is switched on again must not count the time without it.

    The host's instances may have been on other hosts in that time.
    """
    try:
        files.remove(folder / _NAME)
    except OSError as error:
        LOG.warning("Failed to remove the GPU seconds of instances: %s", error)


def read(folder: pathlib.Path) -> list[Account]:
    """Return the accounts in the state path *folder*, none if they cannot be read."""
    return _read(folder / _NAME)[2]


def _read(path: pathlib.Path) -> tuple[str, float, list[Account]]:
    """Return the boot's id, the time up to which the accounts are counted, and the accounts."""
    try:
        fields = json_text.parse(files.read(path, _LARGEST))
        accounts = [_account(**account) for account in fields["accounts"]]
        if (at := float(fields["at"])) < 0:
            raise ValueError(f"they were counted {-at} s before the boot")
        return str(fields["boot_id"]), at, accounts
    except FileNotFoundError:
        pass
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        LOG.warning("Cannot read the GPU seconds of instances, they start from zero: %s", error)
    return "", 0.0, []


def _account(
    addresses: list[str], seconds: float, reported_seconds: float, audits: int, **texts: Any
) -> Account:
    return Account(
        addresses=tuple(addresses),
        seconds=float(seconds),
        reported_seconds=float(reported_seconds),
        audits=int(audits),
        **texts,
    )
