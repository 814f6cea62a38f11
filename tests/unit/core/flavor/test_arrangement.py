# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.flavor import arrangement
from nova_gpu.core.flavor.arrangement import Arrangement, Distribution, Topology, TopologyPolicy


class ArrangementTest(unittest.TestCase):
    def test_words(self) -> None:
        preferred = TopologyPolicy.PREFERRED
        for specs, expected in (
            ({}, arrangement.ANY),
            ({"gpu:topology": "any"}, arrangement.ANY),
            ({"gpu:topology": " NUMA "}, Arrangement(Topology.NUMA)),
            (
                {"gpu:topology": "nvlink", "gpu:topology_policy": "preferred"},
                Arrangement(Topology.NVLINK, preferred),
            ),
            ({"gpu:distribution": "pack"}, Arrangement(distribution=Distribution.PACK)),
        ):
            with self.subTest(specs=specs):
                self.assertEqual(expected, arrangement.parse(specs))

    def test_refused(self) -> None:
        for specs, allowed in (
            ({"gpu:topology": "socket"}, "any or numa or nvlink"),
            ({"gpu:topology": "numa", "gpu:topology_policy": "no"}, "required or preferred"),
            ({"gpu:topology_policy": "required"}, "beside gpu:topology"),
            ({"gpu:distribution": ""}, "pack or spread"),
        ):
            with self.subTest(specs=specs), self.assertRaises(exception.InvalidExtraSpec) as caught:
                arrangement.parse(specs)
            self.assertIn(allowed, str(caught.exception))

    def test_one_gpu_is_never_apart(self) -> None:
        for text, policy, count, expected in (
            ("nvlink", "required", 1, Topology.ANY),
            ("nvlink", "required", 2, Topology.NVLINK),
            ("nvlink", "preferred", 2, Topology.ANY),
        ):
            found = arrangement.parse({"gpu:topology": text, "gpu:topology_policy": policy})
            with self.subTest(text=text, policy=policy, count=count):
                self.assertEqual(expected, found.required(count))
