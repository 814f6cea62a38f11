# SPDX-License-Identifier: Apache-2.0
"""The projects that the user of a command names."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from keystoneauth1 import exceptions as ks_exc
from openstack import exceptions as sdk_exc
from osc_lib import exceptions


def add_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--project`` to *parser*, with the attribute ``projects``: names or IDs.

    :param what: the help text
    """
    parser.add_argument(
        "--project",
        metavar="<project>",
        dest="projects",
        action="append",
        default=[],
        help=f"{what} (name or ID; repeat for several)",
    )


def ids(connection: Any, named: Iterable[str]) -> tuple[str, ...]:
    """Return the IDs of projects.

    A name counts as an ID if Keystone does not let the user look it up.

    :param named: names or IDs
    :raises CommandError: if no project, or several, have a name
    """
    return tuple(_id(connection, name) for name in named)


def _id(connection: Any, named: str) -> str:
    try:
        project = connection.identity.find_project(named)
    except (sdk_exc.ForbiddenException, ks_exc.CatalogException):
        return named
    except sdk_exc.DuplicateResource as e:
        raise exceptions.CommandError(
            f"several projects are called {named}: name it by its ID"
        ) from e
    except (sdk_exc.SDKException, ks_exc.ClientException) as e:
        raise exceptions.CommandError(f"Keystone: {' '.join(str(e).split())}") from e
    if project is None:
        raise exceptions.CommandError(f"Keystone has no project {named}, neither by name nor by ID")
    return str(project.id)
