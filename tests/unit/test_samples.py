# SPDX-License-Identifier: Apache-2.0
"""What is to be copied into nova.conf means to Nova what it says."""

from __future__ import annotations

import io
import pathlib
import re
import textwrap

import fixtures
import testtools
from nova.conf import api, compute, libvirt, scheduler
from oslo_config import cfg, generator, iniparser

from nova_gpu.conf import gpu

ROOT = pathlib.Path(__file__).parents[2]
_SAMPLES = ROOT / "etc/nova"
_OURS = "nova_gpu.scheduler.filters.GPUFilter"
_WEIGHERS = ["nova.scheduler.weights.all_weighers", "nova_gpu.scheduler.weights.GPUWeigher"]
_BLOCK = re.compile(r"(?:::|\.\. code-block:: ini)\n\n((?: {3,}.*\n|\n)+)")


class _Keys(iniparser.BaseParser):  # type: ignore[misc]
    def __init__(self, text: str) -> None:
        super().__init__()
        self.pairs: list[tuple[str, str]] = []
        self._section = "DEFAULT"
        self.parse(text.splitlines(keepends=True))

    def new_section(self, section: str) -> None:
        self._section = section

    def assignment(self, key: str, value: str) -> None:
        self.pairs.append((self._section, key))


def _blocks(path: pathlib.Path) -> list[str]:
    """The pieces of nova.conf that a document shows"""
    blocks = (textwrap.dedent(block) for block in _BLOCK.findall(path.read_text()))
    return [block for block in blocks if re.match(r"(# .*\n|\n)*\[[A-Za-z_]+\]\n", block)]


class SamplesTest(testtools.TestCase):
    def read(self, text: str) -> cfg.ConfigOpts:
        path = self.useFixture(fixtures.TempDir()).join("nova.conf")
        pathlib.Path(path).write_text(text)
        conf = cfg.ConfigOpts()
        for module in (api, compute, libvirt, scheduler, gpu):
            module.register_opts(conf)
        conf(["--config-file", path])
        return conf

    def assertKnown(self, text: str, where: str) -> None:
        """Each option is one of Nova's or ours, and no line of it is lost."""
        conf = self.read(text)
        keys = _Keys(text).pairs
        for section, key in keys:
            group = conf if section == "DEFAULT" else conf[section]
            self.assertIn(key, group, where)
        options = {
            (section, option["opt"].dest): option["opt"]
            for section, group in [("DEFAULT", conf), *conf._groups.items()]
            for option in group._opts.values()
        }
        several = {key for key in keys if keys.count(key) > 1}
        self.assertEqual([], [key for key in several if not options[key].multi], where)

    def test_the_sample_of_all_options_is_what_the_generator_makes(self) -> None:
        conf = cfg.ConfigOpts()
        generator.register_cli_opts(conf)
        conf(["--config-file", str(ROOT / "etc/nova-gpu-config-generator.conf")])
        made = io.StringIO()
        generator.generate(conf, made)
        sample = _SAMPLES / "nova-gpu.conf.sample"
        remedy = "oslo-config-generator --config-file etc/nova-gpu-config-generator.conf"
        if made.getvalue() != sample.read_text():
            self.fail(f"{sample.name} is old: {remedy}")

    def test_samples_and_documents(self) -> None:
        shown = 0
        for sample in sorted(_SAMPLES.glob("nova-*.conf.sample")):
            self.assertKnown(sample.read_text(), sample.name)
        for path in [ROOT / "README.rst", *sorted((ROOT / "doc/source").rglob("*.rst"))]:
            for block in _blocks(path):
                sections = {section for section, _ in _Keys(block).pairs}
                if sections <= {"DEFAULT", "libvirt", "filter_scheduler", "gpu"}:
                    self.assertKnown(block, path.name)
                    shown += 1
        self.assertGreater(shown, 5)

    def test_scheduler(self) -> None:
        """Nova's own filters and weighers stay, beside ours."""
        default = cfg.ConfigOpts()
        scheduler.register_opts(default)
        for path in (_SAMPLES / "nova-scheduler.conf.sample", ROOT / "README.rst"):
            text = path.read_text()
            if path.suffix == ".rst":
                (text,) = (block for block in _blocks(path) if "[filter_scheduler]" in block)
            keys = "[filter_scheduler]" + text.partition("[filter_scheduler]")[2]
            options = self.read(keys.partition("[gpu]")[0]).filter_scheduler
            stock = default.filter_scheduler
            self.assertEqual([*stock.available_filters, _OURS], options.available_filters)
            self.assertEqual([*stock.enabled_filters, "GPUFilter"], options.enabled_filters)
            self.assertEqual(_WEIGHERS, options.weight_classes)
