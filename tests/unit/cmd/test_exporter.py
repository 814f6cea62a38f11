# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu exporter``: what Prometheus reads, and what is asked of it."""

from __future__ import annotations

import json
import pathlib
import re
import socket
import threading
import time
import urllib.error
import urllib.request

import fixtures
import yaml

from doc.ext.reference import tables
from nova_gpu.cmd import exporter
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.state import quarantine
from nova_gpu.virt.delivery import domain_xml
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.usage import accounts
from tests.fixtures import ailments, cleaned, histories, hosts, nodes, pci
from tests.fixtures.bases import commands as base

_ETC = pathlib.Path(__file__).parents[3] / "etc"
_ILL, _KEPT = "0000:04:00.0", "0000:05:00.0"


class ExporterTest(base.HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.virt_type("lxc")
        self.config.config(state_path=str(self.root))
        self.libvirt("test:///default")

    def libvirt(self, uri: str) -> None:
        self.config.config(group="libvirt", connection_uri=uri)

    def samples(self) -> dict[str, float]:
        text = self.printed(0, lambda: exporter.main(discovery.Discovery(), "", once=True))
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def build(self) -> hosts.Host:
        return hosts.build("fermi-8", self.root, nodes.Nodes.FILES)

    def test_cards(self) -> None:
        host = self.build()
        ailments.silence(host, _ILL)
        (card,) = (gpu for gpu in discovery.Discovery().find() if str(gpu.address) == _KEPT)
        quarantine.put(
            discovery.Discovery().quarantine, quarantine.entry(card, "it failed", "replace it")
        )
        self.assertEqual(0, self.samples()['nova_gpu_offered{address="0000:08:00.0"}'])
        cleaned.prove(host, self.root)
        samples = self.samples()
        for name, values in (
            ("healthy", (0, 1, 1)),
            ("divided", (0, 0, 0)),
            ("quarantined", (0, 1, 0)),
            ("offered", (0, 0, 1)),
            ("assigned", (0, 0, 0)),
        ):
            for address, value in zip((_ILL, _KEPT, "0000:08:00.0"), values, strict=True):
                key = f'nova_gpu_{name}{{address="{address}"}}'
                self.assertEqual(value, samples[key], key)
        info = (
            'nova_gpu_info{address="0000:84:00.0",architecture="fermi",driver="nvidia",'
            'name="Tesla M2090",numa_node="1",product_id="10de:1091"}'
        )
        self.assertEqual(1, samples[info])
        self.assertEqual((1, 1), (samples["nova_gpu_up"], samples["nova_gpu_libvirt_up"]))
        self.assertEqual(0, samples["nova_gpu_claims_total"])

    def test_usage(self) -> None:
        """By uuids only, of those who have GPUs and of those who had some lately"""
        self.build()
        uuids = ("one", "a-project", "a-user")
        account = accounts.Account(*uuids, "10de:1091", "Tesla M2090", "fermi", None, ("0000:04",))
        parts = accounts.Account("two", None, None, "10de:26b9", None, None, "nvidia-1155")
        usage = accounts.Accounts(self.root, "boot", lambda: 100.0)
        usage.period([account, parts])
        accounts.Accounts(self.root, "boot", lambda: 160.5).period([account])
        samples = self.samples()
        labels = (
            'instance_uuid="one",product="Tesla M2090",product_id="10de:1091",'
            f'project_id="a-project",usage_id="{account.usage_id}",user_id="a-user",vgpu_type=""'
        )
        name = "nova_gpu_usage_seconds_total"
        self.assertEqual(60.5, samples[f"{name}{{{labels}}}"])
        self.assertEqual(2, sum(key.startswith(name) for key in samples))

    def test_guests_that_can_open_what_others_have(self) -> None:
        """Containers on whose nodes the driver has put other cards; the third has ended"""
        host = self.build()
        first, second = (gpu.address for gpu in host.gpus()[:2])
        node = [
            f"/dev/nvidia{gpu_instances.gpu_minor(card, host.roots)}" for card in (first, second)
        ]
        libvirt = histories.Libvirt()
        for uuid, own, nodes_, running in (
            ("one", first, node, True),
            ("two", second, node[1:], True),
            ("three", second, node, False),
        ):
            text = "".join(
                "<hostdev mode='capabilities' type='misc'>"
                f"<source><char>{node}</char></source></hostdev>"
                for node in nodes_
            )
            noted = domain_xml.GuestMetaGPUs((own,)).to_xml()
            xml = f"<domain ><metadata>{noted}</metadata><devices>{text}</devices></domain>"
            libvirt.domains[uuid] = histories.Domain(uuid, xml, running)
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.cmd.this_host.Reader", lambda: libvirt))
        samples = self.samples()
        for name, values in (("shared", (0, 2)), ("reached", (0, 1)), ("assigned", (1, 3))):
            counts = [samples[f'nova_gpu_{name}{{address="{card}"}}'] for card in (first, second)]
            self.assertEqual(values, tuple(counts), name)

    def test_guests_on_other_nodes_than_their_cards(self) -> None:
        """One with a card of its cell's node and one of another; one that has ended"""
        self.virt_type("kvm")
        host = hosts.build("switched-8", self.root)
        near, far = (
            next(gpu.address for gpu in host.gpus() if gpu.numa_node == node) for node in (0, 1)
        )
        noted = domain_xml.GuestMetaGPUs((near, far)).to_xml()
        xml = (
            f"<domain ><metadata>{noted}</metadata><numatune><memory mode='strict' nodeset='0'/>"
            "<memnode cellid='0' mode='strict' nodeset='0'/></numatune><devices/></domain>"
        )
        libvirt = histories.Libvirt()
        for uuid, is_running in (("one", True), ("two", False)):
            libvirt.domains[uuid] = histories.Domain(uuid, xml, is_running)
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.cmd.this_host.Reader", lambda: libvirt))
        samples = self.samples()
        values = [samples[f'nova_gpu_remote{{address="{card}"}}'] for card in (near, far)]
        self.assertEqual([0, 1], values)

    def test_ports_without_acs(self) -> None:
        self.virt_type("kvm")
        host = hosts.build("switched-8", self.root)
        host.set_acs("0000:02:01.0", 0)
        (host.path("0000:07:00.0") / "config").unlink()
        pci.write(
            host.roots.sysfs / "module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n"
        )
        samples = self.samples()
        values = {
            name.partition('"')[2][:12]: value
            for name, value in samples.items()
            if name.startswith("nova_gpu_unseparated")
        }
        self.assertEqual({"0000:04:00.0", "0000:05:00.0"}, {k for k, v in values.items() if v})
        self.assertEqual(6, len(values))
        self.assertEqual(1, samples["nova_gpu_unsafe_interrupts"])

    def test_the_reference_has_each_by_its_type(self) -> None:
        self.build()
        text = self.printed(0, lambda: exporter.main(discovery.Discovery(), "", once=True))
        metrics = re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text)
        explained = [(row[0].strip("`"), row[1]) for row in tables.TABLES["metrics"]().rows]
        self.assertGreater(len(metrics), 10)
        self.assertEqual([], [metric for metric in metrics if metric not in explained])

    def test_what_cannot_be_read(self) -> None:
        self.libvirt("lxc+unix:///?socket=/nonexistent")
        self.build()
        samples = self.samples()
        self.assertEqual(0, samples["nova_gpu_libvirt_up"])
        self.assertFalse([name for name in samples if name.startswith("nova_gpu_assigned")])
        self.option("sysfs_root", str(self.root / "nothing"))
        samples = self.samples()
        self.assertEqual(0, samples["nova_gpu_up"])
        self.assertIn("nova_gpu_claims_total", samples)

    def test_counters(self) -> None:
        self.build()
        (self.root / "gpu-counters.json").write_text(
            json.dumps(
                {
                    "claims": 7,
                    "vgpu_claims": 3,
                    "failures": {"CardInUse": 2, "OfAnotherRelease": 1},
                    "period_at": 1.5,
                    "free": 4,
                    "cleanings": {"clean": 3},
                    "cleaning_seconds": {"clean": 4.5},
                }
            )
        )
        samples = self.samples()
        self.assertEqual(7, samples["nova_gpu_claims_total"])
        self.assertEqual(3, samples["nova_gpu_vgpu_claims_total"])
        failures = 'nova_gpu_start_failures_total{cause="%s",reason="%s"}'
        for cause, reason, count in (
            ("host", "CardInUse", 2),
            ("unknown", "UnknownFailure", 0),
            ("request", "GuestUnfit", 0),
            ("unknown", "OfAnotherRelease", 1),
        ):
            self.assertEqual(count, samples[failures % (cause, reason)])
        self.assertEqual(1.5, samples["nova_gpu_period_timestamp_seconds"])
        self.assertEqual(4, samples["nova_gpu_free"])
        self.assertEqual(3, samples['nova_gpu_cleaning_seconds_count{outcome="clean"}'])
        self.assertEqual(4.5, samples['nova_gpu_cleaning_seconds_sum{outcome="clean"}'])

    def test_served(self) -> None:
        self.build()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        stop, host_discovery = threading.Event(), discovery.Discovery()
        listen = f"127.0.0.1:{port}"
        serving = threading.Thread(
            target=exporter.main,
            args=(host_discovery, listen),
            kwargs={"once": False, "stop": stop},
        )
        serving.start()
        self.addCleanup(serving.join)
        self.addCleanup(stop.set)
        text = _got(f"http://{listen}/metrics")
        self.assertIn('nova_gpu_healthy{address="0000:04:00.0"} 1.0', text)
        taken = f"--listen {re.escape(listen)}: Address already in use; free that address, or"
        with self.assertRaisesRegex(OSError, taken):
            exporter.main(host_discovery, listen, once=False)
        output = self.printed(2, lambda: exporter.main(host_discovery, "nowhere", once=False))
        self.assertIn("--listen nowhere: it must look like 127.0.0.1:9943", output)


def _got(url: str) -> str:
    for _ in range(2000):
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return str(answer.read().decode())
        except (ConnectionError, urllib.error.URLError):
            time.sleep(0.05)
    raise AssertionError(f"{url} does not answer")


class FilesTest(base.HostTestCase):
    """What etc/ asks of the exporter it has."""

    def assertKnown(self, text: str) -> None:
        counted = {f"{name}_total" for name in exporter.COUNTERS}
        summed = {f"{name}_{part}" for name in exporter.SUMMARIES for part in ("sum", "count")}
        metrics = set(re.findall(r"\bnova_gpu_[a-z_]+", text))
        self.assertEqual(set(), metrics - {*exporter.GAUGES, *counted, *summed})

    def test_alerts(self) -> None:
        text = (_ETC / "prometheus/nova-gpu.rules.yml").read_text()
        rules = yaml.safe_load(text)["groups"][0]["rules"]
        self.assertKnown(" ".join(rule["expr"] for rule in rules))
        for rule in rules:
            self.assertIn(rule["labels"]["severity"], ("warning", "critical"))

    def test_dashboard(self) -> None:
        text = (_ETC / "grafana/nova-gpu.json").read_text()
        self.assertGreater(len(json.loads(text)["panels"]), 10)
        self.assertKnown(text)
