# SPDX-License-Identifier: Apache-2.0
"""What Tempest finds through the entry point group ``tempest.test_plugins``."""

from __future__ import annotations

import pathlib
from typing import Any

from oslo_config import cfg
from tempest.test_discover import plugins

from nova_gpu_tempest import config


class NovaGPUPlugin(plugins.TempestPlugin):
    def load_tests(self) -> tuple[str, str]:
        package = pathlib.Path(__file__).parent
        return str(package / "tests"), str(package.parent)

    def register_opts(self, conf: cfg.ConfigOpts) -> None:
        conf.register_group(config.GROUP)
        conf.register_opts(config.OPTS, group=config.GROUP)

    def get_opt_lists(self) -> list[tuple[str, Any]]:
        return [(config.GROUP.name, list(config.OPTS))]
