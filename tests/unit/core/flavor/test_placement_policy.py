# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.flavor import placement_policy
from nova_gpu.core.flavor.placement_policy import (
    Arrangement,
    Distribution,
    Near,
    PeerAccess,
    Topology,
    TopologyPolicy,
)


class ArrangementTest(unittest.TestCase):
    def test_words(self) -> None:
        preferred = TopologyPolicy.PREFERRED
        for specs, expected in (
            ({}, placement_policy.ANY),
            ({"gpu:topology": "any"}, placement_policy.ANY),
            ({"gpu:topology": " NUMA "}, Arrangement(Topology.NUMA)),
            (
                {"gpu:topology": "nvlink", "gpu:topology_policy": "preferred"},
                Arrangement(Topology.NVLINK, preferred),
            ),
            ({"gpu:distribution": "pack"}, Arrangement(distribution=Distribution.PACK)),
            ({"gpu:near": " NIC "}, Arrangement(near=Near.NIC)),
            (
                {"gpu:near": "nvme", "gpu:near_policy": "required"},
                Arrangement(near=Near.NVME, near_policy=TopologyPolicy.REQUIRED),
            ),
            ({"gpu:peer_access": "None"}, placement_policy.ANY),
            (
                {"gpu:peer_access": "required", "hw:hide_hypervisor_id": "false"},
                Arrangement(peer_access=PeerAccess.REQUIRED),
            ),
            ({"gpu:peer_access": "none", "hide_hypervisor_id": "true"}, placement_policy.ANY),
        ):
            with self.subTest(specs=specs):
                self.assertEqual(expected, placement_policy.parse(specs))

    def test_refused(self) -> None:
        for specs, allowed in (
            ({"gpu:topology": "socket"}, "any or numa or nvlink"),
            ({"gpu:topology": "numa", "gpu:topology_policy": "no"}, "required or preferred"),
            ({"gpu:topology_policy": "required"}, "together with gpu:topology"),
            ({"gpu:distribution": ""}, "pack or spread"),
            ({"gpu:near": "disk"}, "any or nic or nvme"),
            ({"gpu:near": "nic", "gpu:near_policy": "any"}, "required or preferred"),
            ({"gpu:near_policy": "preferred"}, "together with gpu:near"),
            ({"gpu:peer_access": "auto"}, "none or preferred or required"),
            *(
                ({"gpu:peer_access": word, hiding: "Yes"}, f"none, or any value without {hiding}")
                for word in ("preferred", "required")
                for hiding in ("hw:hide_hypervisor_id", "hide_hypervisor_id")
            ),
        ):
            with self.subTest(specs=specs), self.assertRaises(exception.InvalidExtraSpec) as caught:
                placement_policy.parse(specs)
            self.assertIn(allowed, str(caught.exception))
