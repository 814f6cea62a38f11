# SPDX-License-Identifier: Apache-2.0
"""The files with which NVIDIA's driver in a guest gets a licence for its vGPUs.

The files are those of NVIDIA's virtual GPU client licensing guide (docs.nvidia.com/vgpu): a client
configuration token of the licence server, and ``gridd.conf``, the settings of ``nvidia-gridd``. The
operator puts them into ``[gpu]vgpu_licences``. Who has the token gets licences from its server, so
an instance gets that of its own project alone, and only while it has vGPUs of NVIDIA, or whole
cards and the operator has settings for these: what a whole card is licensed for, its guest's driver
cannot know (``FeatureType`` 2 or 4), and the setting for vGPUs would be wrong. A flavor may name
other settings than those of all whole cards, or of all vGPUs.
"""

from __future__ import annotations

import os
import pathlib
import re
import stat

from nova import objects
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import exception, names
from nova_gpu_licence.core import extra_specs

LOG = logging.getLogger(__name__)

# The keys in vendordata
_TOKEN, _SETTINGS = "token", "gridd_conf"
# The settings of whole cards whose flavor names none
_WHOLE = "whole"
_DEFAULT = "default"
# A project's ID is part of a path: Keystone's are 32 hexadecimal digits, or names such as default.
_PROJECT = re.compile(r"[A-Za-z0-9_-]{1,64}")
# A token has a few KiB.
_LARGEST = 1 << 16
# Types of vGPUs are called nvidia-35 by NVIDIA's driver alone (nova_gpu.core.vgpu.vgpu.Slot).
_OF_NVIDIA = "/nvidia-"


def of_instance(instance: objects.Instance) -> dict[str, dict[str, str]]:
    """Return the licence of an instance with vGPUs of NVIDIA, or with whole cards.

    It is empty for any other instance, and without the settings that are whole cards', or that the
    flavor names. The files
    are read at each call. A file that cannot be used is left out, with a warning in the log: the
    instance boots without a licence.
    """
    folder = CONF.gpu.vgpu_licences
    resources = instance.resources or ()
    is_vgpu = any(map(_needs_licence, resources))
    has_whole = any(item.resource_class == names.RESOURCE_CLASS for item in resources)
    if not folder or not (is_vgpu or has_whole):
        return {}
    project = instance.project_id or ""
    if not _PROJECT.fullmatch(project):
        LOG.warning(
            "Not giving the licence of its vGPUs to the instance: project ID %r can be no part of "
            "a file's name in [gpu]vgpu_licences.",
            project,
            instance=instance,
        )
        return {}
    try:
        chosen = extra_specs.LICENCE.of(instance.flavor.extra_specs)
    except exception.InvalidExtraSpec as e:
        LOG.warning("Not giving the licence of its GPUs to the instance: %s", e, instance=instance)
        return {}
    prefix = f"{chosen}." if chosen else "" if is_vgpu else f"{_WHOLE}."
    licence: dict[str, str] = {}
    for key, ending in ((_SETTINGS, f"{prefix}conf"), (_TOKEN, "tok")):
        if prefix and key == _TOKEN and not licence:
            return {}
        for path in (pathlib.Path(folder, f"{name}.{ending}") for name in (project, _DEFAULT)):
            try:
                licence[key] = _read(path)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as e:
                LOG.warning(
                    "Not giving the licence of its vGPUs to the instance: %s cannot be used: %s. "
                    "It must be a text file that nova-api can read and other users cannot (chown "
                    "root:nova and chmod 640).",
                    path,
                    e,
                    instance=instance,
                )
            break
    if not licence:
        LOG.info(
            "There is no licence for the vGPUs of the instance; for one, put %s.tok or %s.tok into "
            "%s.",
            project,
            _DEFAULT,
            folder,
            instance=instance,
        )
    return {"vgpu_licence": licence} if licence else {}


def _needs_licence(resource: objects.Resource) -> bool:
    return (
        resource.resource_class == names.VGPU_RESOURCE_CLASS and _OF_NVIDIA in resource.identifier
    )


def _read(path: pathlib.Path) -> str:
    """Return the text of a file that other users can neither read nor write.

    :raises OSError: if it cannot be read
    :raises ValueError: if it is not such a file
    """
    with open(path, "rb", opener=_open) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("it is not a regular file")
        if mode & stat.S_IRWXO:
            raise ValueError(f"other users have access to it (mode {stat.S_IMODE(mode):o})")
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError:  # its text would show what is in the file
        raise ValueError("it is not UTF-8") from None
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _open(path: str, flags: int) -> int:
    """Open a file; do not wait at a pipe that no process writes to."""
    return os.open(path, flags | os.O_NONBLOCK)
