# SPDX-License-Identifier: Apache-2.0
"""nova-compute dies, and no GPU is lost, shared, leaked or offered while in use.

All points share one cloud, and a neighbour that keeps its card from the first to the last.
"""

from __future__ import annotations

import functools
import itertools
import time
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from nova.tests.functional.api import client as api_client

from tests.cloud import leftovers, oracle
from tests.crash import cloud, lives
from tests.lxc import base
from tests.lxc import place as places

_REACHED_S = 90.0
# After which a deletion that died with the service is asked for again
_AGAIN_S = 15.0
_MENDED_S = 90.0


class Point(unittest.TestCase):
    """One death, what comes after it, and its name."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__("runTest")
        self._name = name
        self._work = work

    def id(self) -> str:
        return f"tests.crash.{self._name}"

    def __str__(self) -> str:
        return self._name

    def runTest(self) -> None:
        self._work()


class Crashes(cloud.Cloud):
    leaves = types.MappingProxyType({"task": "Nova forgets some that died with a service"})

    def __init__(self, points: int, seed: int, pattern: str, result: unittest.TestResult) -> None:
        super().__init__("runTest")
        self._wanted, self._seed, self._pattern = points, seed, pattern
        self._result = result
        self._died = 0

    def runTest(self) -> None:
        self._small, self._large = self.flavor(gpus="= 2"), self.flavor(gpus="= 4")
        self._neighbour = self.boot(self.flavor(gpus="= 1"))
        self._before = self._leftovers()
        for life in itertools.islice(lives.lives(self._seed), 100 * self._wanted + 1000):
            if self._died >= self._wanted:
                break
            if any(self._pattern in str(stage) for stage in life):
                self._live(life)
        self.assertGPUs(self._neighbour, {0})

    def _live(self, life: lives.Life) -> None:
        self._server: dict[str, Any] = {}
        for stage in life:
            if stage.point is None:
                self._do(stage)
                continue
            self._died += 1
            Point(str(stage), functools.partial(self._kill, stage)).run(self._result)
            if self.is_dead():  # It went wrong before it was started again.
                self.restart_compute()
        if self._mended(self._all_leftovers):
            for leftover in leftovers.remove_empty_groups(self._leftovers() - self._before):
                print(f"libvirt left the empty {leftover}", flush=True)
        if self._all_leftovers():
            Point(f"after {life[-2]}, {life[-1]}", self._fail_with_leftovers).run(self._result)
            self._heal()
        self._before |= self._leftovers()

    def _do(self, stage: lives.Stage) -> None:
        self.ask("trap", None)
        self._begin(stage)
        status = "VERIFY_RESIZE" if stage.operation == "resize" else "ACTIVE"
        self.wait_until(self._server, status)

    def _kill(self, stage: lives.Stage) -> None:
        self.ask("trap", stage.point)
        self._begin(stage)
        self._wait_for_death(stage)
        self.start_compute()
        self._run_periodics()
        if stage.operation == "destroy":
            self._wait_until_gone()
        self.assertEqual([], self._mended(self._all_differences))

    def _fail_with_leftovers(self) -> None:
        self.assertEqual([], self._all_leftovers())

    def _heal(self) -> None:
        """So that the next life does not begin with the scars of this one."""
        allocations = self._get_allocations_by_provider_uuid(self.gpu_provider(base.PROVIDER))
        for consumer in {*allocations} - {self._neighbour["id"]}:
            self.placement.delete(f"/allocations/{consumer}")

    def _leftovers(self) -> set[str]:
        return {
            leftover for leftover in self._lv.leftovers() if "tests.crash.compute" not in leftover
        }

    # The operations

    def _begin(self, stage: lives.Stage) -> None:
        """Asks for it."""
        if stage.operation == "spawn":
            body = self._build_server(image_uuid=base.IMAGE, flavor_id=self._small, networks="none")
            self._server = self.api.post_server({"server": body})
        elif stage.operation == "destroy":
            self._delete()
        else:
            action: dict[str, dict[str, Any]] = {
                "reboot": {"reboot": {"type": "HARD"}},
                "resize": {"resize": {"flavorRef": self._large}},
                "confirm": {"confirmResize": None},
                "revert": {"revertResize": None},
            }
            self.api.post_server_action(self._server["id"], action[stage.operation])

    def _delete(self) -> None:
        """Where a resize is still being confirmed the API waits for the service to end that, and
        fails when it dies."""
        try:
            self.api.delete_server(self._server["id"])
        except api_client.OpenStackApiException as error:
            if error.response.status_code != 500 or not self.is_dead():
                raise

    def _wait_until_gone(self) -> None:
        """A second request is what an operator does about one that was lost."""
        deadline = time.monotonic() + _AGAIN_S
        while not self._is_gone(self._server):
            if time.monotonic() > deadline:
                self._delete()
                deadline = time.monotonic() + _REACHED_S
            time.sleep(0.2)

    # Death, and what comes after it

    def _wait_for_death(self, stage: lives.Stage) -> None:
        """Of the point itself; of our own hand where it is past it, or the operation is over."""
        assert stage.point
        kind, _, words = stage.point.partition(" ")
        if kind == "time":
            time.sleep(float(words))
        else:
            deadline = time.monotonic() + _REACHED_S
            while not (self.is_dead() or self._is_over(stage)) and time.monotonic() < deadline:
                time.sleep(0.1)
        self.kill_compute()

    def _is_over(self, stage: lives.Stage) -> bool:
        if stage.operation == "destroy":
            return self._is_gone(self._server)
        server = self.api.get_server(self._server["id"])
        if server["status"] == "ERROR":
            return True
        over = {"resize": "VERIFY_RESIZE"}.get(stage.operation, "ACTIVE")
        return server["status"] == over and server["OS-EXT-STS:task_state"] is None

    def _mended(self, look: Callable[[], list[str]]) -> list[str]:
        """What is still wrong after some time and some periods."""
        deadline = time.monotonic() + _MENDED_S
        while texts := look():
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
            self._run_periodics()
        return texts

    def _all_differences(self) -> list[str]:
        now = oracle.read(self)
        differences = self._differences(now)
        instance, (host,) = now.instances.get(self._server["id"]), now.hosts.values()
        if instance is None or instance.vm_state != "active" or instance.task_state:
            return differences
        if (domain := host.domains.get(instance.uuid)) and domain.is_running:
            differences += self._inside({device.identifier for device in instance.devices})
        return differences

    def _differences(self, now: oracle.Cloud) -> list[str]:
        differences = oracle.differences(None, now)
        return [str(difference) for difference in differences if difference.kind not in self.leaves]

    def _inside(self, cards: set[str]) -> Iterator[str]:
        """Yield what an ordinary user of the guest can open or not, against the database."""
        opened = {places.GPUS[gpu] for gpu in self.gpus_inside(self._server)}
        if opened != cards:
            yield f"without: of {sorted(cards)} the guest can open {sorted(opened)}"

    def _all_leftovers(self) -> list[str]:
        """Nothing is to be left of an instance that is gone."""
        return [
            *self._differences(oracle.read(self)),
            *leftovers.quarantined(self._state),
            *sorted(self._leftovers() - self._before),
        ]


def run(points: int, seed: int, pattern: str, result: unittest.TestResult) -> None:
    """As many points as that, and what went wrong with the cloud itself."""
    of_cloud = unittest.TestResult()
    Crashes(points, seed, pattern, result).run(of_cloud)
    for _, text in (*of_cloud.errors, *of_cloud.failures):
        Point("the cloud of these points", functools.partial(_fail, text)).run(result)


def _fail(text: str) -> None:
    raise AssertionError(text)
