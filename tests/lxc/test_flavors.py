# SPDX-License-Identifier: Apache-2.0
"""From a flavor to a guest that has its GPUs and no other's."""

from __future__ import annotations

from lab.cloud import guest, image
from tests.lxc import base, cloud, place


class FlavorTest(base.LXCTestCase):
    def test_blueprint(self) -> None:
        """The flavor of the blueprint, letter for letter."""
        server = self.boot(self.flavor(**base.BLUEPRINT))

        self.assertGPUs(server, {0, 1})
        self.assertEqual(2, self.usage())
        for name in ("nvidiactl", "nvidia-uvm"):
            said = self.run_inside(
                server, "/bin/sh", "-c", f": </dev/{name}", uid=image.USER_ID
            ).stderr
            self.assertIn(base.NO_DRIVER, said, name)

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
        self.assertEqual([], [each for each in attempts if not each.refused])

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

    def test_no_gpu_spans_sockets_without_need(self) -> None:
        self.assertGPUs(self.boot_with(1), {0})
        self.assertGPUs(self.boot_with(4), {4, 5, 6, 7})
        self.assertGPUs(self.boot_with(2), {1, 2})

    def test_full_host(self) -> None:
        self.boot_with(5)

        refusal = self.refusal(self.flavor(gpus="= 4"))

        self.assertRegex(refusal, r"\b3\b.*\bfree\b|\bfree\b.*\b3\b")
        self.assertEqual(5, self.usage())

    def test_what_the_host_never_has(self) -> None:
        refusal = self.refusal(self.flavor(gpus="1", gpu_arch="hopper"))
        self.assertIn("hopper", refusal.lower())

        refusal = self.refusal(self.flavor(gpus="1", hypervisor="KVM"))
        self.assertRegex(refusal, "hypervisor.*(?i:qemu|kvm)")

    def test_counted_words(self) -> None:
        """The flavor in Placement's own words, which quota counts."""
        words = {"resources:PGPU": "2", "trait:CUSTOM_GPU_ARCH_FERMI": "required"}
        self.assertGPUs(self.boot(self.flavor(**words)), {0, 1})


class TwoArchitecturesTest(base.LXCTestCase):
    MACHINE = "two-architectures"

    def test_flavors(self) -> None:
        self.assertGPUs(self.boot(self.flavor(gpus="= 2", gpu_arch="s== kepler")), {4, 5})
        self.assertGPUs(self.boot(self.flavor(**base.BLUEPRINT)), {0, 1})

        # Three are free, and more, but not of one kind.
        refusal = self.refusal(self.flavor(gpus="3", gpu_arch="kepler"))
        self.assertRegex(refusal, r"\bat most 2 free\b")
        self.assertEqual(4, self.usage())

    def test_image_that_requires_one(self) -> None:
        """The image says which, the flavor only how many."""
        properties = self.glance.images[cloud.IMAGE]["properties"]
        properties["trait:CUSTOM_GPU_ARCH_KEPLER"] = "required"

        self.assertGPUs(self.boot(self.flavor(gpus="1")), {4})
        for words in ({}, base.BLUEPRINT):
            self.assertIn("No valid host", self.refusal(self.flavor(**words)))
        self.assertEqual(1, self.usage())
