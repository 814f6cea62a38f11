# SPDX-License-Identifier: Apache-2.0
"""Simulate a month: ``python -m tests.billing.month FOLDER SEED DAYS``, in Nova's environment.

In the folder are then the notifications that a consumer received, those that were sent, what
Prometheus read each minute, and the truth.
"""

from __future__ import annotations

import json
import logging
import pathlib
import sys
import tempfile
from unittest import mock

from nova_gpu.cmd import exporter
from tests.fixtures import billed_cloud
from tests.fixtures.billed_cloud import Host

_NAME = "nova_gpu_usage_seconds"
_SCRAPE_S = 60.0


def main(folder: pathlib.Path, seed: int, days: float) -> None:
    logging.disable(logging.CRITICAL)
    with (
        mock.patch("os.fsync"),  # simulated hosts lose no power
        tempfile.TemporaryDirectory() as state,
        (folder / "usage.om").open("w") as metrics,
    ):
        cloud = billed_cloud.Cloud(pathlib.Path(state), seed)
        metrics.write(f"# TYPE {_NAME} counter\n")

        def scrape() -> None:
            for host in cloud.hosts:
                if not host.is_dead:
                    metrics.writelines(_samples(host, billed_cloud.EPOCH + cloud.now))

        with mock.patch("nova_gpu.notifications.emit", cloud.receive):
            cloud.run(days * billed_cloud.DAY, {_SCRAPE_S: scrape})
        metrics.write("# EOF\n")
    for name, payloads in (("received", cloud.received), ("sent", cloud.sent)):
        lines = (json.dumps(payload) + "\n" for payload in payloads)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    truth = {
        "/".join(key): {
            "project": cloud.projects[key[0]],
            "seconds": seconds,
            "longest": cloud.longest[key],
            "changes": cloud.changes[key],
            "most": cloud.most[key],
        }
        for key, seconds in cloud.truth.items()
    }
    (folder / "truth.json").write_text(json.dumps(truth))
    print(f"{days:g} days, {len(cloud.truth)} instances and products, {dict(cloud.seen)}")
    print(f"{len(cloud.sent)} notifications, {len(cloud.received)} received")


def _samples(host: Host, now: float) -> list[str]:
    """What the host's exporter answers about usage"""
    metrics = exporter.Metrics.__new__(exporter.Metrics)
    metrics._state_path = host.folder
    (family,) = (item for item in metrics._counted() if item.name == _NAME)
    lines = []
    for sample in family.samples:
        labels = {**sample.labels, "instance": f"{host.name}:9943"}
        text = ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items())
        lines.append(f"{sample.name}{{{text}}} {sample.value} {now:.0f}\n")
    return lines


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
