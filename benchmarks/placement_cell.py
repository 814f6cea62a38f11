# SPDX-License-Identifier: Apache-2.0
"""One cell of benchmarks.placement: a cloud of one shape in a Placement of its own, asked.

Started by benchmarks.placement in a process that has so much memory and time and no more. Writes
``ready`` when the cloud stands, then the seconds of each answer as JSON, or ``memory``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import pathlib
import resource
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
import webob
from nova import objects
from nova.conf import CONF
from nova.scheduler import utils
from oslo_config import cfg
from oslo_utils import uuidutils
from placement import conf as placement_conf
from placement import db_api, deploy
from placement.db.sqlalchemy import models

from nova_gpu.core import model
from nova_gpu.core.flavor import query, request
from nova_gpu.core.placement import group_traits

GPUS = 8
ARCHITECTURE = "hopper"
PRODUCT = model.Product("10de", "2330", "H100", ARCHITECTURE)
# What Nova calls it where [pci]device_spec and alias give no class of their own.
PCI_CLASS = "CUSTOM_PCI_10DE_2330"
HOST = {"VCPU": 128, "MEMORY_MB": 2 << 20, "DISK_GB": 10_000}

# From Placement's release notes for wide provider trees.
TUNED: dict[str, dict[str, object]] = {
    "placement": {
        "max_allocation_candidates": 1000,
        "allocation_candidates_generation_strategy": "breadth-first",
    },
    "workarounds": {"optimize_for_wide_provider_trees": True},
}

_RUNS = 5
_ENOUGH_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    total_by_class: dict[str, int]
    traits: frozenset[str] = frozenset({"OWNER_NOVA"})


def providers(shape: str) -> Sequence[Provider]:
    """Those below each host's own."""
    if shape == "ours":
        traits = group_traits.of_group(PRODUCT, "QEMU", ["OWNER_NOVA"])
        return [Provider({"PGPU": GPUS}, traits)]
    return [
        Provider({PCI_CLASS: 1}, frozenset({"OWNER_NOVA", "COMPUTE_MANAGED_PCI_DEVICE"}))
    ] * GPUS


def querystring(shape: str) -> str:
    """What nova-scheduler asks for an instance with all GPUs of a host, made by Nova itself."""
    objects.register_all()
    words = {"gpus": f"= {GPUS}", "gpu_arch": f"s== {ARCHITECTURE}", "hypervisor": "s== KVM"}
    gpu_request = request.of(words).whole
    assert gpu_request is not None
    specs = query.extra_specs(words, gpu_request, ()) if shape == "ours" else {}
    flavor = objects.Flavor(
        vcpus=16, memory_mb=65536, root_gb=100, ephemeral_gb=0, swap=0, extra_specs=specs
    )
    spec = objects.RequestSpec(flavor=flavor, is_bfv=False, requested_resources=[])
    if shape != "ours":
        CONF.set_override("pci_in_placement", True, "filter_scheduler")
        device = {"vendor_id": PRODUCT.vendor_id, "product_id": PRODUCT.product_id}
        pci_request = objects.InstancePCIRequest(
            count=GPUS, spec=[device], request_id=uuidutils.generate_uuid(), alias_name="gpu"
        )
        spec.pci_requests = objects.InstancePCIRequests(requests=[pci_request])
        spec.generate_request_groups_from_pci_requests()
    wanted = utils.ResourceRequest.from_request_spec(spec)
    if shape != "ours":
        wanted.group_policy = "none"  # as nova-scheduler does for groups from outside the flavor
    text: str = wanted.to_querystring()
    return text


class Cloud:
    """A Placement in this process over SQLite, filled by bulk inserts."""

    def __init__(self, folder: pathlib.Path, *, tuned: bool) -> None:
        conf = cfg.ConfigOpts()
        placement_conf.register_opts(conf)
        conf.set_override("connection", f"sqlite:///{folder}/db", "placement_database")
        conf([], default_config_files=[], project="placement")
        conf.set_override("auth_strategy", "noauth2", "api")
        for group, options in TUNED.items() if tuned else ():
            for option, value in options.items():
                conf.set_override(option, value, group)
        self._errors = _Errors()
        logging.getLogger("placement.fault_wrap").addHandler(self._errors)
        db_api.configure(conf)
        self._engine = db_api.placement_context_manager.writer.get_engine()
        models.BASE.metadata.create_all(self._engine)
        self._app = deploy.loadapp(conf)

    def fill(self, hosts: int, below: Sequence[Provider]) -> None:
        for name in sorted({name for provider in below for name in provider.total_by_class}):
            if name.startswith("CUSTOM_"):
                self.answer("PUT", f"/resource_classes/{name}")
        for name in sorted({name for provider in below for name in provider.traits}):
            if name.startswith("CUSTOM_"):
                self.answer("PUT", f"/traits/{name}")
        with self._engine.begin() as connection:
            classes = _ids(connection, models.ResourceClass)
            traits = _ids(connection, models.Trait)
            rows = list(_rows(hosts, below, classes, traits))
            for table in (models.ResourceProvider, models.Inventory, models.ResourceProviderTrait):
                of_table = [row for kind, row in rows if kind is table]
                connection.execute(sa.insert(table.__table__), of_table)

    def answer(self, method: str, path: str) -> Any:
        """The body. :raises MemoryError: where Placement ran out of it"""
        http_request = webob.Request.blank(path, method=method)
        http_request.headers.update(
            {"x-auth-token": "admin", "openstack-api-version": "placement 1.36"}
        )
        errors = self._errors.seen
        errors.clear()
        answer = http_request.get_response(self._app)
        if any(isinstance(error, MemoryError) for error in errors):
            raise MemoryError
        if answer.status_int >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.text} {errors}")
        return answer.json if answer.body else None


class _Errors(logging.Handler):
    """What Placement's outermost layer makes a 500 of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            self.seen.append(record.exc_info[1])


def _ids(connection: sa.Connection, table: Any) -> dict[str, int]:
    return {name: number for number, name in connection.execute(sa.select(table.id, table.name))}


def _rows(
    hosts: int, below: Sequence[Provider], classes: dict[str, int], traits: dict[str, int]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """(table, row) of every provider, with ids of their own."""
    number = 0
    for host in range(hosts):
        root = number + 1
        for index, provider in enumerate([Provider(HOST), *below]):
            number += 1
            yield (
                models.ResourceProvider,
                {
                    "id": number,
                    "uuid": str(uuid.uuid4()),
                    "name": f"host{host}_{index}",
                    "generation": 1,
                    "root_provider_id": root,
                    "parent_provider_id": None if number == root else root,
                },
            )
            for name, total in provider.total_by_class.items():
                yield (
                    models.Inventory,
                    {
                        "resource_provider_id": number,
                        "resource_class_id": classes[name],
                        "total": total,
                        "reserved": 0,
                        "min_unit": 1,
                        "max_unit": total,
                        "step_size": 1,
                        "allocation_ratio": 1.0,
                    },
                )
            for trait in provider.traits:
                yield (
                    models.ResourceProviderTrait,
                    {"resource_provider_id": number, "trait_id": traits[trait]},
                )


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("shape", choices=["ours", "other"])
    command.add_argument("hosts", type=int)
    command.add_argument("memory", type=int, help="bytes of address space")
    command.add_argument("--tuned", action="store_true")
    options = command.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (options.memory, options.memory))
    # Only what Placement logs of its own failures is looked at.
    logging.disable(logging.WARNING)
    logging.getLogger("placement").propagate = False

    with tempfile.TemporaryDirectory() as folder:
        cloud = Cloud(pathlib.Path(folder), tuned=options.tuned)
        cloud.fill(options.hosts, providers(options.shape))
        path = f"/allocation_candidates?{querystring(options.shape)}"
        print("ready", flush=True)
        seconds: list[float] = []
        try:
            while len(seconds) < _RUNS and sum(seconds) < _ENOUGH_S:
                begun = time.perf_counter()
                candidates = cloud.answer("GET", path)["allocation_requests"]
                seconds.append(time.perf_counter() - begun)
                if not candidates:
                    raise RuntimeError("no candidate: the cloud does not have what is asked for")
        except MemoryError:
            print("memory", flush=True)
        else:
            print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
