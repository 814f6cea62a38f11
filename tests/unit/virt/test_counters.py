# SPDX-License-Identifier: Apache-2.0
"""What nova-compute counts for the exporter."""

from __future__ import annotations

import pathlib
from concurrent import futures

import fixtures
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.virt import counters


class CountersTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.MockPatchObject(counters, "_folder", None))

    def test_what_is_counted_outlives_the_service(self) -> None:
        counters.claimed(1, 0)  # what is no service counts nothing
        self.assertEqual([], list(self.folder.iterdir()))
        self.assertEqual(counters.Counters(), counters.read(self.folder))
        counters.begin(self.folder)
        counters.claimed(2, 0)
        counters.claimed(1, 0)
        counters.failed(exception.CardInUse("0000:04:00.0", "in use", "end it"))
        counters.cleaned(1.5, clean=True)
        counters.cleaned(0.5, clean=True)
        counters.cleaned(60, clean=False)
        self.assertEqual(
            counters.Counters(
                claims=3,
                failures={"CardInUse": 1},
                cleanings={"clean": 2, "failed": 1},
                cleaning_seconds={"clean": 2.0, "failed": 60.0},
            ),
            counters.read(self.folder),
        )

    def test_none_is_lost_between_threads(self) -> None:
        counters.begin(self.folder)
        with futures.ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda _: counters.claimed(1, 2), range(20)))
        counts = counters.read(self.folder)
        self.assertEqual((20, 40), (counts.claims, counts.vgpu_claims))

    def test_nothing_fails_of_a_file(self) -> None:
        counters.begin(self.folder / "missing")
        counters.claimed(1, 0)
        counters.begin(self.folder)
        for content in ("{", "[]", '{"claims": null}', '{"claims": 1, "failures": []}'):
            (self.folder / "gpu-counters.json").write_text(content)
            self.assertEqual(counters.Counters(), counters.read(self.folder))
        counters.claimed(1, 0)
        self.assertEqual(1, counters.read(self.folder).claims)
