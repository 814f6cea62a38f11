# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu show``"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nova_gpu.osc import providers, rest, servers
from nova_gpu.osc.lines import Lines


class ShowServer(servers.ShowOne):
    """Show the GPUs of a server: what its flavor asks for, what it has, and which cards these are.

    The cards are among its diagnostics, as long as its guest runs. All but what is asked for is for
    administrators.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Sequence[str], Iterable[Any]]:
        connection = self.connection(parsed_args)
        server = servers.find(connection, parsed_args.server)
        shown: dict[str, Any] = {
            "id": server.id,
            "name": server.name,
            "status": server.status,
            "project_id": server.project_id,
            "asked_for": servers.asked_for(server),
        }
        try:
            shown.update(_held(connection, server))
        except rest.Refused:
            print(
                "What a server has, and on which host, is for administrators.", file=self.app.stderr
            )
        return tuple(shown), tuple(shown.values())


def _held(connection: Any, server: Any) -> dict[str, Any]:
    """:raises Refused: where that is not for whoever asks"""
    held = providers.of_instance(connection, server.id)
    cards, reason = servers.cards(connection, server) if held else ([], "")
    return {
        "host": server.hypervisor_hostname or "",
        "gpus": sum(amount for _, amount in held),
        "groups": Lines([_described(*each) for each in held], _group),
        "cards": Lines(cards, _card) if cards else reason,
    }


def _group(each: Mapping[str, Any]) -> str:
    kind = f"{each['model']}, {each['architecture']}, {each['mode']}"
    return f"{each['gpus']} of {each['product']} ({kind}) on {each['host']}"


def _card(each: Mapping[str, Any]) -> str:
    """:param each: as :data:`nova_gpu.core.names.DIAGNOSTIC`; of a card that is gone the address"""
    text = each.get("address", "")
    if product := each.get("product"):
        text += f" {each.get('name') or 'unknown'} ({product})"
    if each.get("numa_node") is not None:
        text += f", NUMA node {each['numa_node']}"
    return f"{text}: {each['trouble']}" if each.get("trouble") else text


def _described(provider: providers.Provider, amount: int) -> dict[str, Any]:
    return {
        "host": provider.host,
        "gpus": amount,
        "product": provider.product,
        "model": provider.model,
        "architecture": provider.architecture,
        "mode": provider.mode,
    }
