# SPDX-License-Identifier: Apache-2.0
"""Any history of a host of containers: no start gives a guest a device that a running guest can
open, and a period reports all that two guests can open.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

from tests.fixtures import failing_calls
from tests.fixtures.bases import fuzz as base
from tests.fixtures.histories import ADDRESSES, LAYOUTS, History

# How often each is tried among the others. Of "boot" there is the most to see.
_WEIGHTS: Mapping[str, int] = {
    "boot": 8,
    "reboot": 3,
    "soft reboot": 2,
    "stop": 2,
    "delete": 3,
    "period": 4,
    "restart": 1,
    "divide": 3,
    "number": 3,
    "move": 1,
    "stranger": 1,
    "stranger ends": 1,
}
_ORDERS = list(itertools.permutations(range(4)))
# Nobody starts a guest in these. Yet afterwards two that run already may open one device: a card of
# whose MIG instances several have some is made whole, or its number goes to one that is.
_NO_START = frozenset({"divide", "number", "stranger ends", "delete", "stop", "period", "restart"})
STEPS = 34
# How nova-compute's calls on its files of state fail in the next step, or until something else does
_CALLS: Mapping[str, int] = {"call fails": 6, "killed": 4, "full disk": 2, "room": 2}
_PROOF_WEIGHTS: Mapping[str, int] = {
    **_CALLS,
    "boot": 8,
    "reboot": 1,
    "stop": 1,
    "delete": 6,
    "period": 6,
    "restart": 3,
    "boot host": 1,
    "divide": 2,
    "stranger": 1,
    "stranger ends": 1,
    "stain": 1,
    "mend": 2,
}
_FULL = [("boot", number) for number in range(12)]
_EIGHT = _FULL[:8]
_CODES = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS, errno.ESTALE)


def _steps(weights: Mapping[str, int]) -> st.SearchStrategy[list[tuple[str, int]]]:
    """A history's steps, each a word and a number"""
    words = [word for word, weight in weights.items() for _ in range(weight)]
    step = st.tuples(st.sampled_from(words), st.integers(0, 999))
    return st.lists(step, min_size=STEPS, max_size=STEPS)


class _Histories(base.FuzzTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.histories = contextlib.ExitStack()
        self.addCleanup(self.histories.close)

    def begin(self) -> None:
        """Another history, and the end of the one before"""
        self.histories.close()
        root = self.root / "host"
        shutil.rmtree(root, ignore_errors=True)
        self.now: History = self.histories.enter_context(History(root))

    def _step(self, word: str, value: int) -> None:
        history = self.now
        guests, strangers = list(history.instances), history.strangers()
        chosen = guests[value % len(guests)] if guests else None
        actions: dict[str, Any] = {
            "boot": lambda: history.boot(value),
            "period": history.period,
            "restart": history.restart,
            "divide": lambda: history.divide(value % 4, [None, *LAYOUTS][value // 4 % 6]),
            "number": lambda: history.number(
                _ORDERS[value % 24], value // 24 % 8 if value // 24 % 8 < 4 else None
            ),
            "move": lambda: history.move(value % 4, ADDRESSES[value // 4 % 5]),
            "stranger": lambda: history.stranger(value),
            "boot host": history.boot_host,
            "stain": lambda: history.unclean.add(ADDRESSES[value % 4]),
            "mend": lambda: history.mend(ADDRESSES[value % 4]),
        }
        if strangers:
            actions["stranger ends"] = lambda: history.libvirt.domains.pop(strangers[0])
        if chosen:
            actions["reboot"] = lambda: history.reboot(chosen)
            actions["soft reboot"] = lambda: history.reboot(chosen, soft=True)
            actions["stop"] = lambda: history.stop(chosen)
            actions["delete"] = lambda: history.delete(chosen)
        if word in actions:
            actions[word]()


class HistoriesTest(_Histories):
    @base.fuzzed(share=0.3, most=3000, steps=_steps(_WEIGHTS))  # 100,000 steps
    def test_no_start_has_two_guests_open_one_device(self, steps: list[tuple[str, int]]) -> None:
        """And if two can after what others did, the next period reports them."""
        self.live(steps)

    def test_a_card_made_whole_under_two_guests(self) -> None:
        """In the few histories of the unit suite no two come to that by chance. Neither is started
        while the other runs, and both are once all have ended."""
        whole = [("divide", 0), ("divide", 1)]
        self.live([*_EIGHT, *whole, ("period", 0)])
        self.assertTrue(self._reported())
        self.assertEqual({pair for pair, _ in self.now.pairs()}, self._reported())
        guests = set(self.now.instances)
        back = [("divide", 4), ("divide", 9), ("period", 0)]
        reboots = [("reboot", index) for index in range(8)]
        self.live([*_EIGHT, *whole, ("period", 0), *back, *reboots])
        self.assertEqual(set(), self._reported())
        stops = [("stop", index) for index in range(8)]
        self.live([*_EIGHT, *whole, ("period", 0), *back, *stops, ("period", 0), *reboots])
        self.assertEqual(len(guests), sum(map(bool, self.now.opened().values())))

    def test_a_card_made_whole_before_the_service_began(self) -> None:
        """What a guest can open of it then is not given to another when it is divided again."""
        made_whole = [("divide", 0), ("divide", 1), ("restart", 0)]
        self.live([*_EIGHT, *made_whole, ("period", 0)])
        self.assertTrue(self._reported())
        back = [("divide", 4), ("divide", 9), ("period", 0)]
        for count in range(1, 8):
            self.live([*_EIGHT[:count], *made_whole, *back, *_EIGHT])

    def test_what_a_guest_may_have_in_a_socket(self) -> None:
        """It could open another's card, and its nodes lead to its own again."""
        moved_and_back = [("number", 1 + 24 * 7), ("period", 0), ("number", 24 * 7), ("period", 0)]
        self.live([("boot", 0), *moved_and_back, *[("boot", 0)] * 8])
        domain, *others = self.now.libvirt.domains.values()
        own, other = {(ADDRESSES[2],)}, {(ADDRESSES[3],)}
        self.assertEqual((own, own | other), (self.now.opened()[domain.uuid], domain.seen))
        self.assertTrue(others)
        self.assertNotIn(other, self.now.opened().values())

    def test_a_card_made_whole_that_had_no_driver(self) -> None:
        """What a service that began then knows of it has no nodes."""
        without_driver = [("number", 0), ("restart", 0)]
        all_taken = ("number", 24 * 7)  # in the same order, and none is missing
        self.live([*_EIGHT, *without_driver, all_taken, ("divide", 0), ("period", 0)])
        self.assertTrue(self._reported())

    def test_what_opens_nothing(self) -> None:
        two_of_one, one_of_one = ("divide", 4 * 3), ("divide", 4 * 2)
        for steps in (
            # A guest keeps its GPU instance's node when its compute instance alone has gone.
            [two_of_one, ("period", 0), *_EIGHT, one_of_one, ("period", 0)],
            # Those who have the number of a card divided anew open one MIG instance each.
            [*_EIGHT, ("divide", 2 + 4 * 2), ("number", 2 + 24 * 7), ("period", 0)],
        ):
            self.live(steps)

    def live(self, steps: list[tuple[str, int]]) -> None:
        self.begin()
        before: set[frozenset[str]] = set()
        for number, (word, value) in enumerate(steps):
            lines = [f"{word} {value}" for word, value in steps[: number + 1]]
            runs = {guest.run for guest in self.now.libvirt.list_guests()}
            self._step(word, value)
            now = dict(self.now.pairs())
            self._check_started(runs, lines)
            if word not in _NO_START:
                new = {pair: what for pair, what in now.items() if pair not in before}
                self.assertEqual({}, new, f"after {', '.join(lines)}")
            before = set(now)
            if word == "period":
                self._check_reported(before)

    def _check_started(self, before: set[int], lines: list[str]) -> None:
        """No running guest may have open what one has that this step has started.

        :param before: the runs of those that ran already
        """
        opened = self.now.opened()
        running = self.now.libvirt.list_guests()
        novas = (guest for guest in running if guest.uuid in self.now.instances)
        for started in (guest for guest in novas if guest.run not in before):
            for other in (guest for guest in running if guest is not started):
                clashing = {
                    (mine, theirs)
                    for mine in opened[started.uuid]
                    for theirs in other.seen
                    if mine == theirs or (mine[0] == theirs[0] and 1 in (len(mine), len(theirs)))
                }
                self.assertEqual(set(), clashing, f"after {', '.join(lines)}")

    def _reported(self) -> set[frozenset[str]]:
        """The guests of which the log says that they can open one GPU, two and two"""
        return {pair for pairs in self._reported_by_device().values() for pair in pairs}

    def _reported_by_device(self) -> dict[str, set[frozenset[str]]]:
        shared = self.now.gpus.publication.reporter._shared
        return {
            str(device): {frozenset(pair) for pair in itertools.combinations(uuids, 2)}
            for device, uuids in shared.items()
        }

    def _check_reported(self, pairs: set[frozenset[str]]) -> None:
        """All pairs are said, and no others."""
        self.assertEqual(set(), pairs - self._reported())
        for device, reported in self._reported_by_device().items():
            self.assertEqual(set(), reported - pairs, device)
        reaching = {uuid for uuid, _ in self.now.gpus.publication.reporter._reached}
        for uuid, opened in self.now.opened().items():
            own = self.now.own(uuid) if uuid in self.now.instances else opened
            if any(node not in own and node[:1] not in own for node in opened):
                self.assertIn(uuid, reaching)


class ProofsTest(_Histories):
    """No guest starts with a device that another one had, and that was not cleaned since."""

    @base.fuzzed(share=0.3, most=3000, steps=_steps(_PROOF_WEIGHTS))  # 100,000 steps
    def test_no_start_has_what_was_not_cleaned(self, steps: list[tuple[str, int]]) -> None:
        self.live(steps)

    def test_a_card_that_another_domain_had(self) -> None:
        """It is gone when the next service looks."""
        self.live([("stranger", 2), ("period", 0), ("stranger ends", 0), ("restart", 0), *_FULL])
        self.assertEqual(2, self._whole())

    def test_a_guest_after_each_failing_call(self) -> None:
        """Between any two of them the service may have been killed."""
        for word in ("call fails", "killed"):
            for number in range(0, 300, 30):
                ends = [(word, number), ("delete", 0), ("restart", 0), ("period", 0)]
                self.live([("boot", 1), *ends, *_FULL])
                self.assertEqual(2, self._whole())

    def test_a_card_divided_anew(self) -> None:
        """What was in the memory of one MIG instance may be in any other one now."""
        stranger = [("stranger", 1), ("period", 0)]
        ended = [*stranger, ("stranger ends", 0)]
        for first in stranger, ended, [*ended, ("restart", 0)]:
            for layout in (5, 13):
                anew = [("divide", layout), ("period", 0)]
                self.live([*first, *anew, *_FULL])
                self.live([*first, ("divide", 1), ("period", 0), *anew, *_FULL])

    def _step(self, word: str, value: int) -> None:
        super()._step(word, value)
        if word == "divide":  # Until the next period it is not seen (limits.rst).
            self.now.period()

    def _whole(self) -> int:
        """How many guests run that have a whole card"""
        return sum((ADDRESSES[n],) in nodes for n in (2, 3) for nodes in self.now.opened().values())

    def live(self, steps: list[tuple[str, int]]) -> None:
        self.begin()
        self.state, self.is_over = self.now.host.root / "state", False
        with contextlib.ExitStack() as stack:
            for number, (word, value) in enumerate(steps):
                runs = {guest.run for guest in self.now.libvirt.list_guests()}
                if word in _CALLS:
                    stack.close()
                    stack.enter_context(self._failing(word, value))
                    continue
                try:
                    self._step(word, value)
                except Exception:
                    if self.now.is_alive():
                        raise
                self.now.wait()
                self._check(runs, [f"{word} {value}" for word, value in steps[: number + 1]])
                # A disk is full for some time, and everything else fails once.
                if not self.now.is_alive():
                    stack.close()
                    self.now.restart()
                elif self.is_over:
                    stack.close()

    @contextlib.contextmanager
    def _failing(self, word: str, value: int) -> Iterator[None]:
        code = _CODES[value % len(_CODES)]
        number = 1 + value // len(_CODES) % 60
        self.is_over = word != "full disk"
        if word == "room":
            yield
        elif word == "full disk":
            with failing_calls.writes(self.state, errno.ENOSPC):
                yield
        elif word == "call fails":
            with failing_calls.one(self.state, number, code):
                yield
        else:
            with failing_calls.all_from(self.state, number, errno.EIO):
                self.now.is_alive = lambda: not failing_calls.is_failing()
                try:
                    yield
                finally:
                    self.now.is_alive = lambda: True

    def _check(self, before: set[int], lines: list[str]) -> None:
        """:param before: the runs of those that ran already"""
        history = self.now
        for started in history.libvirt.list_guests():
            if started.run in before:
                continue
            if started.uuid in history.instances:
                self.assertEqual(set(), history.stained(started.uuid), f"after {', '.join(lines)}")
                history.stains |= dict.fromkeys(history.opened()[started.uuid], started.uuid)
