# SPDX-License-Identifier: Apache-2.0
"""From a flavor to a guest that has its GPUs and no other's."""

from __future__ import annotations

from lab.cloud import guest, image
from tests.lxc import base, place


class FlavorTest(base.LXCTestCase):
    def test_blueprint(self) -> None:
        """The flavor of the blueprint, letter for letter."""
        server = self.boot(self.flavor(**base.BLUEPRINT))

        self.assertGPUs(server, {0, 1})
        self.assertEqual(2, self.usage())
        for name in ("nvidiactl", "nvidia-uvm"):
            errors = self.run_inside(
                server, "/bin/sh", "-c", f": </dev/{name}", uid=image.USER_ID
            ).stderr
            self.assertIn(base.NO_DRIVER, errors, name)

        self.delete(server)
        self.assertEqual(0, self.usage())

    def test_root_in_the_guest_gets_no_other_card(self) -> None:
        server = self.boot_with(1)
        domain = self.domain(server)

        others = [place.node(gpu) for gpu in range(1, len(place.GPUS))]
        attempts = [
            *guest.make_nodes(self._lv, domain, others),
            *guest.escapes(self._lv, domain, others[0], place.GPUS[1]),
        ]
        self.assertGreater(len(attempts), len(others) + 8)
        self.assertEqual([], [attempt for attempt in attempts if not attempt.refused])

    def test_root_in_the_guest_is_nobody_on_the_host(self) -> None:
        server = self.boot_with(1)

        maps = self.run_inside(server, "/bin/cat", "/proc/self/uid_map", "/proc/self/gid_map")
        expected = [["0", "100000", "65536"]] * 2
        self.assertEqual(expected, [line.split() for line in maps.stdout.splitlines()])

    def test_network_of_its_own(self) -> None:
        for flavor in (self.flavor(gpus="1"), self.flavor()):
            server = self.boot(flavor)

            of_guest, of_host = guest.network_namespaces(self._lv, self.domain(server))
            self.assertNotEqual(of_host, of_guest)
            interfaces = self.run_inside(server, "/bin/ls", "/proc/sys/net/ipv4/conf")
            self.assertEqual({"all", "default", "lo"}, set(interfaces.stdout.split()))

    def test_nothing_for_who_asks_for_nothing(self) -> None:
        server = self.boot(self.flavor())

        self.assertGPUs(server, ())
        self.assertEqual(0, self.usage())
