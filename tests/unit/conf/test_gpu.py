# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import fixtures
from oslo_config import cfg
from oslotest import base

from nova_gpu.conf import gpu


class FormerNamesTest(base.BaseTestCase):
    def read(self, *lines: str) -> cfg.ConfigOpts:
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "nova.conf")
        path.write_text("\n".join(["[gpu]", *lines]))
        conf = cfg.ConfigOpts()
        conf.register_opts(gpu.OPTS, group="gpu")
        conf(["--config-file", str(path)])
        return conf

    def test_former_names_are_read(self) -> None:
        conf = self.read("handed_out_timeout = 7", "linked = a b", "linked = c d")
        self.assertEqual(7, conf.gpu.claim_grace_period)
        self.assertEqual(["a b", "c d"], conf.gpu.link_groups)

    def test_the_name_of_today_counts(self) -> None:
        conf = self.read("handed_out_timeout = 7", "claim_grace_period = 8")
        self.assertEqual(8, conf.gpu.claim_grace_period)
