# SPDX-License-Identifier: Apache-2.0
"""The driver's files of containers, as CDI files of other versions than today's have them."""

from __future__ import annotations

import json

from tests.fixtures import cdi, hosts
from tests.functional import base


class CDITest(base.GPUServersTestBase):
    def prepare(self, host: hosts.Host) -> None:
        self.document = cdi.nvidia(host.root / "driver", range(8))
        self.file = host.roots.cdi_spec_dirs[0] / "nvidia.json"

    def test_newer_versions(self) -> None:
        """What is known of a minor one is all that its guests need; of a major one nothing is."""
        self.start_host()
        self.document |= {"cdiVersion": "1.2.0", "later": [1]}
        self.file.write_text(json.dumps(self.document))
        for _ in range(2):
            server = self.boot(self.gpu_flavor(1))
            mounts = self.domain(server).xpath("devices/filesystem/target/@dir")
            self.assertIn("/usr/bin/nvidia-smi", mounts)
        self.assertEqual(1, self.log().count("has parts that nova-gpu does not"))

        self.document["cdiVersion"] = "2.0.0"
        self.file.write_text(json.dumps(self.document))
        self._stop_server(server)
        (details,) = self.refused({"os-start": None}, server)
        self.assertIn("CDI file with the driver's files for it cannot be used", details)
        self.assertIn("2.0.0 is of a newer major version", self.log())
