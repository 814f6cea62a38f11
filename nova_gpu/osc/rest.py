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


class Refused(exceptions.CommandError):
    """What policy does not allow whoever asks."""


def placement(connection: Any, url: str, *, unknown_trait: Any = None, missing: Any = None) -> Any:
    """The body of the answer to GET *url*.

    :param connection: an openstack.connection.Connection
    :param unknown_trait: what stands for the answer where a trait is one that nobody has
    :param missing: and where the provider is gone since it was listed
    :raises Refused: to whom it may not be told
    """
    with clean_refusals("Placement"):
        answer = connection.placement.get(url, microversion=_VERSION, raise_exc=False)
        if answer.status_code == 400 and unknown_trait is not None and "trait" in answer.text:
            return unknown_trait
        if answer.status_code == 404 and missing is not None:
            return missing
        path = url.partition("?")[0]
        if answer.status_code in (401, 403):
            raise Refused(
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
    """Around what *service* is asked: one line for whatever it answers or does not.

    :raises Refused: as :func:`placement`
    :raises CommandError: for all else
    """
    try:
        yield
    except sdk_exc.ForbiddenException as e:
        raise Refused(
            f"{service} refuses this to you: it is for administrators ({e.details or e})"
        ) from e
    except (sdk_exc.SDKException, ks_exc.ClientException) as e:
        raise exceptions.CommandError(f"{service}: {' '.join(str(e).split())}") from e
