# SPDX-License-Identifier: Apache-2.0
"""Sum what Ceilometer would send to Gnocchi: ``samples.py FOLDER``, in Ceilometer's environment.

Its own code reads etc/ceilometer's files, makes samples of the notifications and measures of the
samples. Only Gnocchi's client is not one.
"""

from __future__ import annotations

import collections
import json
import pathlib
import sys
import types
from typing import Any
from urllib import parse

import yaml
from ceilometer import gnocchi_client, keystone_client, service
from ceilometer.meter import notifications
from ceilometer.publisher import gnocchi

_ETC = pathlib.Path(__file__).parents[2] / "etc/ceilometer"


class Client:
    """What the publisher calls of Gnocchi's client; it keeps the measures and the resources."""

    def __init__(self) -> None:
        self.metric = self.resource = self.archive_policy = self
        self.policies: list[dict[str, Any]] = []
        self.resources: dict[str, dict[str, Any]] = {}
        self.forget()

    def forget(self) -> None:
        """Forget the measures; the publisher does not send a known resource again."""
        self.sums: dict[tuple[str, str], float] = collections.defaultdict(float)
        self.largest: dict[tuple[str, str], float] = collections.defaultdict(float)
        self.counts: collections.Counter[str] = collections.Counter()

    def create(self, policy: dict[str, Any]) -> None:
        self.policies.append(policy)

    def update(self, kind: str, name: str, attributes: dict[str, Any]) -> None:
        self.resources[name] = {"type": kind, **attributes}

    def batch_resources_metrics_measures(
        self, measures: dict[str, Any], create_metrics: bool
    ) -> None:
        for resource, metrics in measures.items():
            for name, metric in metrics.items():
                for measure in metric["measures"]:
                    value = float(measure["value"])
                    self.counts[name] += 1
                    self.sums[resource, name] += value
                    key = resource, name
                    self.largest[key] = max(self.largest[key], value)


def main(folder: pathlib.Path) -> None:
    resources = folder / "gnocchi_resources.yaml"
    own = yaml.safe_load(
        (pathlib.Path(gnocchi.__file__).parent / "data/gnocchi_resources.yaml").read_text()
    )
    for key, more in yaml.safe_load((_ETC / "gnocchi_resources.yaml").read_text()).items():
        own[key] += more
    (instance,) = (entry for entry in own["resources"] if entry["resource_type"] == "instance")
    instance["metrics"] |= {"gpu.claimed": None, "gpu.released": None}
    resources.write_text(yaml.safe_dump(own))
    conf = service.prepare_service([], [])
    conf.set_override("meter_definitions_dirs", [str(_ETC / "meters.d")], group="meter")
    client = Client()
    keystone_client.get_client = lambda *_, **__: None
    gnocchi_client.get_gnocchiclient = lambda *_, **__: client
    url = f"gnocchi://?enable_filter_project=false&resources_definition_file={resources}"
    publisher = gnocchi.GnocchiPublisher(conf, parse.urlparse(url))
    meters = notifications.ProcessMeterNotifications(conf, types.SimpleNamespace())
    answer = {}
    for name in ("received", "sent"):
        client.forget()
        for line in (folder / f"{name}.jsonl").read_text().splitlines():
            payload = json.loads(line)
            message = {
                "event_type": payload.pop("event_type"),
                "publisher_id": f"compute.{payload['host']}",
                "metadata": {"timestamp": "2026-11-01T00:00:00+00:00"},
                "ctxt": {},
                "payload": payload,
            }
            publisher.publish_samples(list(meters.build_sample(message)))
        for what, values in (
            ("sums", {key[0]: v for key, v in client.sums.items() if key[1] == "gpu.seconds"}),
            (
                "totals",
                {key[0]: v for key, v in client.largest.items() if key[1] == "gpu.seconds.total"},
            ),
        ):
            seconds: dict[str, float] = collections.defaultdict(float)
            for resource, value in values.items():
                about = client.resources[resource]
                assert about["type"] == "nova_gpu", about
                key = "/".join((about["instance_uuid"], about["product_id"], about["project_id"]))
                seconds[key] += value
            answer[f"{what} of all {name}"] = seconds
        print(name, dict(client.counts))
    (folder / "ceilometer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
