# SPDX-License-Identifier: Apache-2.0
"""Sum what CloudKitty rates: ``ratings.py FOLDER URL DAYS``, in CloudKitty's environment.

Its Prometheus collector reads etc/cloudkitty's metrics and asks the Prometheus at the URL, hour by
hour and project by project.
"""

from __future__ import annotations

import collections
import datetime
import json
import pathlib
import sys

import yaml
from cloudkitty.collector import prometheus
from oslo_config import cfg

_METRICS = pathlib.Path(__file__).parents[2] / "etc/cloudkitty/metrics.yml"
_FIRST = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)


def main(folder: pathlib.Path, url: str, days: float) -> None:
    cfg.CONF([], project="cloudkitty")
    cfg.CONF.set_override("prometheus_url", url, group="collector_prometheus")
    conf = yaml.safe_load(_METRICS.read_text())
    collector = prometheus.PrometheusCollector(period=3600, conf=conf)
    truth = json.loads((folder / "truth.json").read_text())
    projects = sorted({entry["project"] for entry in truth.values()})
    seconds: dict[str, float] = collections.defaultdict(float)
    points = 0
    (metric,) = collector.conf
    for hour in range(round(days * 24)):
        start = _FIRST + datetime.timedelta(hours=hour)
        for project in projects:
            end = start + datetime.timedelta(hours=1)
            for point in collector.fetch_all(metric, start, end, project):
                points += 1
                about = {**point.groupby, **point.metadata}
                key = "/".join((about["instance_uuid"], about["product_id"], about["project_id"]))
                seconds[key] += float(point.qty) * 3600
    print(f"{points} data points")
    (folder / "cloudkitty.json").write_text(json.dumps({"rated": seconds}))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
