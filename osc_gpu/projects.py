# SPDX-License-Identifier: Apache-2.0
"""Projects: the option ``--project``, and their IDs and names."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from keystoneauth1 import exceptions as ks_exc
from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from osc_gpu import base_command


def add_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--project`` to *parser*; the attribute ``projects`` lists its names or IDs."""
    parser.add_argument(
        "--project",
        metavar="<project>",
        dest="projects",
        action="append",
        default=[],
        help=f"{what} (name or ID; repeat for several)",
    )


def ids(connection: Any, named: Iterable[str]) -> tuple[str, ...]:
    """Return the IDs of the projects with these names or IDs.

    If policy does not let the user look up projects in Keystone, all of *named* are taken as IDs.

    :raises CommandError: if one of *named* is no project, or the name of several
    """
    return tuple(_id(connection, name) for name in named)


def names(connection: Any) -> Mapping[str, str]:
    """Return the names of all projects by ID, none if Keystone does not let the user list them."""
    try:
        return {project.id: project.name for project in connection.identity.projects()}
    except (sdk_exc.SDKException, ks_exc.ClientException, ks_exc.CatalogException):
        return {}


def cell(project: str, known: Mapping[str, str]) -> Any:
    """Return a cell of a table with a project's name, and with its ID in any other format."""
    return base_command.Short(project, known[project]) if known.get(project) else project


def _id(connection: Any, named: str) -> str:
    try:
        project = connection.identity.find_project(named)
    except (sdk_exc.ForbiddenException, ks_exc.CatalogException):
        return named
    except sdk_exc.DuplicateResource as e:
        raise exceptions.CommandError(
            f"several projects are called {named}; give the ID of one"
        ) from e
    except (sdk_exc.SDKException, ks_exc.ClientException) as e:
        raise exceptions.CommandError(f"Keystone: {' '.join(str(e).split())}") from e
    if project is None:
        raise exceptions.CommandError(f"Keystone has no project {named}, neither by name nor by ID")
    return str(project.id)
