# SPDX-License-Identifier: Apache-2.0
"""The [gpu] options of nova-api about licences."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_config import cfg

OPTS: Sequence[cfg.Opt] = (
    cfg.StrOpt(
        "vgpu_licences",
        help="""
Folder on the hosts of nova-api with the licences of NVIDIA's vGPUs, which guests read from Nova's
vendordata: ``<project id>.tok`` is the client configuration token of NVIDIA's licence server for
the instances of a project, ``<project id>.conf`` the text of their ``/etc/nvidia/gridd.conf``.
``default.tok`` and ``default.conf`` are for projects without such a file. Only instances that have
vGPUs of NVIDIA's driver get them; with ``<project id>.whole.conf`` or ``default.whole.conf``, which
is then their ``gridd.conf``, instances with whole cards, too. A flavor's ``gpu:licence`` puts a
name of its own in the place of ``whole``. A file to which other users of the host have access is
not used. nova-api reads the files anew at each request. Unset: guests get no licence.
""",
    ),
)
