# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import availability
from nova_gpu.core.availability import Scope, Source, Unavailable

KEPT = Unavailable("it is in quarantine", "replace it", Source.QUARANTINE)
GONE = Unavailable("it is gone", "", Source.BUS, Scope.ALL)
NO_IOMMU = Unavailable("no IOMMU is on", "turn it on", Source.HOST, Scope.ALL)


class AvailabilityTest(unittest.TestCase):
    def test_text(self) -> None:
        self.assertEqual(("it is in quarantine; replace it", "it is gone"), (str(KEPT), str(GONE)))
        self.assertEqual((None, "it is gone"), (availability.text(()), availability.text((GONE,))))

    def test_merge(self) -> None:
        """In the order of the maps, each reason once; who has none is offered"""
        found = availability.merge({"a": (KEPT,), "b": ()}, {"a": (GONE, KEPT), "c": (GONE,)})
        self.assertEqual({"a": (KEPT, GONE), "c": (GONE,)}, found)

    def test_worst(self) -> None:
        self.assertEqual(GONE, availability.worst((KEPT, GONE, NO_IOMMU)))
        self.assertEqual((KEPT, None), (availability.worst((KEPT,)), availability.worst(())))
        self.assertIsNone(availability.for_all((KEPT,)))
        self.assertIsNone(availability.for_all(availability.to_new((GONE, NO_IOMMU))))

    def test_what_is_not_published(self) -> None:
        self.assertEqual(NO_IOMMU, availability.of_host((KEPT, GONE, NO_IOMMU)))
        self.assertIsNone(availability.of_host((KEPT, GONE)))
        self.assertEqual([False, True, False], [r.is_fault for r in (KEPT, GONE, NO_IOMMU)])
