# SPDX-License-Identifier: Apache-2.0
"""The plugin of OpenStackClient, in the entry point group ``openstack.cli.extension``.

The commands call Placement and Nova through the client's own openstacksdk connection. So the plugin
creates no client of its own, and adds neither an API version nor a global option.
"""

from __future__ import annotations

import argparse

API_NAME = "gpu"
API_VERSION_OPTION = "os_gpu_api_version"
API_VERSIONS = {"1": "osc_gpu.plugin"}
DEFAULT_API_VERSION = "1"


def make_client(instance: object) -> None:
    return None


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    return parser
