# SPDX-License-Identifier: Apache-2.0
"""Reading from Placement and Nova on behalf of whoever runs the command.

Everything here raises CommandError, with one line that says who refused what.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from keystoneauth1 import exceptions as ks_exc
from openstack import exceptions as sdk_exc
from osc_lib import exceptions

# Of allocation candidates: suffixes of several characters, same_subtree, root_required.
_VERSION = "1.36"


def placement(connection: Any, url: str, *, unknown_trait: Any = None) -> Any:
    """The body of the answer to GET *url*.

    :param connection: an openstack.connection.Connection
    :param unknown_trait: what stands for the answer where a trait is one that nobody has
    """
    with clean_refusals("Placement"):
        answer = connection.placement.get(url, microversion=_VERSION, raise_exc=False)
        if answer.status_code == 400 and unknown_trait is not None and "trait" in answer.text:
            return unknown_trait
        path = url.partition("?")[0]
        if answer.status_code in (401, 403):
            raise exceptions.CommandError(
                f"Placement refuses GET {path} to you ({answer.status_code}): what hosts have is "
                "for administrators (role admin, or Placement's policy)"
            )
        if answer.status_code != 200:
            text = " ".join(answer.text.split())[:300]
            raise exceptions.CommandError(
                f"Placement answers GET {path} with {answer.status_code}: {text}"
            )
        return answer.json()


@contextlib.contextmanager
def clean_refusals(service: str) -> Iterator[None]:
    try:
        yield
    except sdk_exc.ForbiddenException as e:
        raise exceptions.CommandError(
            f"{service} refuses this to you: it is for administrators ({e.details or e})"
        ) from e
    except (sdk_exc.SDKException, ks_exc.ClientException) as e:
        raise exceptions.CommandError(f"{service}: {' '.join(str(e).split())}") from e
