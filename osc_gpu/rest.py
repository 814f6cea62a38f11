# SPDX-License-Identifier: Apache-2.0
"""Requests to Placement and Nova on behalf of the user who runs the command.

All functions take an openstack.connection.Connection. They raise CommandError with one line about
which service refused what, NotPermitted if its policy did, as do the callers of other modules.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from keystoneauth1 import exceptions as ks_exc
from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from osc_gpu import nova_lists

# For allocation candidates: suffixes of several characters, same_subtree, root_required.
VERSION = "1.36"


class NotPermitted(exceptions.CommandError):
    """A request that the policy of Nova or Placement does not permit the user."""


class CachedConnection:
    """A connection that caches answers: equal calls of its services return the first answer.

    So all that a command reads through it is of one moment.
    """

    def __init__(self, connection: Any) -> None:
        self.placement = _Once(connection.placement)
        compute = connection.compute
        self.compute = _Once(compute, servers=functools.partial(nova_lists.servers, compute))


class _Once:
    """An openstacksdk proxy that caches the answer to each call."""

    def __init__(self, proxy: Any, **instead: Callable[..., Any]) -> None:
        self._proxy, self._instead = proxy, instead
        self._answers: dict[Any, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*arguments: Any, **options: Any) -> Any:
            key = (name, arguments, frozenset(options.items()))
            if key not in self._answers:
                call = self._instead.get(name) or getattr(self._proxy, name)
                answer = call(*arguments, **options)
                # A generator's pages are read here, where the caller handles refusals.
                self._answers[key] = list(answer) if isinstance(answer, Iterator) else answer
            return self._answers[key]

        return ask


def placement(connection: Any, url: str, *, unknown_trait: Any = None, missing: Any = None) -> Any:
    """Return the JSON body of Placement's answer to GET *url*.

    :param unknown_trait: what to return if the query has a trait that Placement does not know
    :param missing: what to return if Placement has nothing at *url*
    """
    with clean_refusals("Placement"):
        answer = connection.placement.get(url, microversion=VERSION, raise_exc=False)
        if answer.status_code == 400 and unknown_trait is not None and "trait" in answer.text:
            return unknown_trait
        if answer.status_code == 404 and missing is not None:
            return missing
        judge("GET", url, answer)
        return answer.json()


def of_provider(connection: Any, uuid: str, noun: str) -> Any:
    """Return a resource provider's *noun*: its inventories, usages, allocations or traits.

    Return an empty value if the provider no longer exists.
    """
    url = f"/resource_providers/{uuid}/{noun}"
    return placement(connection, url, missing={noun: {}})[noun]


def judge(verb: str, url: str, answer: Any) -> None:
    """Raise an error if Placement's answer has an error status."""
    path = url.partition("?")[0]
    if answer.status_code in (401, 403):
        raise NotPermitted(
            f"Placement refused {verb} {path} ({answer.status_code}): what hosts have is for "
            "administrators (role admin, or Placement's policy)"
        )
    if answer.status_code not in (200, 201, 204):
        text = " ".join(answer.text.split())[:300]
        raise exceptions.CommandError(
            f"Placement answered {verb} {path} with {answer.status_code}: {text}"
        )


@contextlib.contextmanager
def clean_refusals(service: str) -> Iterator[None]:
    """Turn an error or missing answer of *service* into a CommandError of one line."""
    try:
        yield
    except sdk_exc.ForbiddenException as e:
        raise NotPermitted(
            f"{service} refused this request: it is for administrators ({e.details or e})"
        ) from e
    except (sdk_exc.SDKException, ks_exc.ClientException) as e:
        raise exceptions.CommandError(f"{service}: {' '.join(str(e).split())}") from e
