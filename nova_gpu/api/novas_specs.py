# SPDX-License-Identifier: Apache-2.0
"""Nova's own validation of a flavor's property, for ``openstack gpu flavor check``.

The client, which imports nothing of Nova, loads this through the entry point group
``osc_gpu.extra_spec_checks``, if Nova is installed.
"""

from __future__ import annotations

from nova import exception
from nova.api.validation.extra_specs import validators


def mistake(key: str, value: str) -> str | None:
    """Return why nova-api would refuse this property of a flavor, ``None`` if it would not."""
    try:
        validators.validate(key, value)
    except exception.ValidationError as error:
        return str(error).removeprefix("Validation failed; ")
    return None
