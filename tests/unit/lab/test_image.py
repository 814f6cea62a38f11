# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from lab.cloud import image
from nova_gpu.host.container import contents


class FoldersTest(unittest.TestCase):
    def test_all_into_which_a_vendors_files_may_be_bound(self) -> None:
        paths = [f"/{folder}" for folder in image.FOLDERS]
        made = {"/", *paths, *(path.rpartition("/")[0] for path in paths)}
        self.assertEqual(set(), contents._SYSTEM_FOLDERS - made)
