# SPDX-License-Identifier: Apache-2.0
import pathlib

import fixtures
import testtools

from tests.fixtures.bases import commands as base

_CONNECT = """
import sys
from nova_gpu.cmd import services
from nova_gpu.conf import CONF
services.read_options(["nova-gpu", "--config-file", sys.argv[1]])
services.connect()
print(CONF.oslo_messaging_rabbit.use_queue_manager)
"""


class ConnectTest(testtools.TestCase):
    def test_the_queue_for_answers_is_numbered_in_no_file(self):
        conf = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "nova.conf")
        conf.write_text(
            "[DEFAULT]\ntransport_url = fake://\n"
            "[oslo_messaging_rabbit]\nuse_queue_manager = true\n"
        )
        done = base.fresh(_CONNECT, conf)
        self.assertEqual("False\n", done.stdout, done.stderr)
