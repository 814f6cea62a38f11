# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import types
from unittest import mock

import testtools

from nova_gpu.virt.inventory import tracker


class SavedWhenFreedTest(testtools.TestCase):
    def test_by_release(self) -> None:
        """Nova before 31.2 removes no record at once."""
        for attributes in ({}, {"to_be_removed_when_freed": {"0000:04:00.0": mock.Mock()}}):
            pci = types.SimpleNamespace(**attributes)
            find = mock.Mock(return_value=types.SimpleNamespace(pci_tracker=pci))
            for _ in range(2):  # a period after the other
                tracker.Tracker(find).save_freed()
            self.assertEqual(attributes.keys(), vars(pci).keys())
            for record in attributes.get("to_be_removed_when_freed", {}).values():
                pci.to_be_removed_when_freed.pop("0000:04:00.0", None)
                record.save.assert_called_once_with()
