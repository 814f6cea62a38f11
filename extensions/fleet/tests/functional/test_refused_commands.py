# SPDX-License-Identifier: Apache-2.0
"""The remedies of the page on commands: each is typed, and the command that was refused goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import re
import shlex
from collections.abc import Callable
from importlib import metadata
from typing import Any
from unittest import mock

from nova.compute import rpcapi
from osc_lib import exceptions

from doc.ext.reference import messages
from osc_gpu import group_list
from osc_gpu_fleet import host_closing, preemption
from osc_gpu_fleet.planning import search
from tests.fixtures.checkout import ROOT
from tests.functional import base, room, sdk

_CREATE = f"server create --image {base.IMAGE} --for 0.1 --every 0.1"
# A text of the page, what an administrator types after "openstack gpu" (a tenant after "demo:")
# until the last line gets that text, and the lines of the remedy. P is a project's ID; RESIZE gives
# the instance "firm" a flavor that lets it move, DELETE deletes all flavors.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("Nova: No Server found for none", "show none", "show yields"),
    (
        "Nova refused this request: it is for administrators",
        "demo: flavor create new --gpus 1",
        "flavor create new --gpus 1",
    ),
    ("what hosts have is for administrators", "demo: capacity one", "capacity one"),
    ("Placement has no GPUs of a host x", "group list --host x", "group list --host host1"),
    (
        "none of these GPUs has the architecture x; there are: fermi, kepler",
        "group list --arch x",
        "group list --arch kepler",
    ),
    (
        "none of these GPUs has the architecture x; there are: fermi, kepler",
        "host list --arch x",
        "host list --arch kepler",
    ),
    (
        "--limits goes without --project and --host",
        "usage --limits --project P",
        "usage --project P",
    ),
    (
        "free only on hosts that are drained",
        f"drain host2 --apply; {_CREATE} --flavor kepler one",
        f"drain host2 --undo; {_CREATE} --flavor kepler one",
    ),
    ("no moves make room for 4 of four", "plan four --count 4", "plan four --count 1"),
    ("no moves empty host1", "drain host1", "RESIZE; drain host1"),
    ("requires gpu:topology numa", "plan topology", "plan four"),
    ("which of their free GPUs are near one another", "plan near", "plan four"),
    ("asks for whole GPUs and for vGPUs", "plan both", "plan four"),
    ("Nova has no host called x", "drain x --undo", "drain host1 --undo"),
    ("no host with GPUs is called x", "drain x", "drain host1"),
    ("is preemptible itself", "preempt spot --project P", "preempt one --project P"),
    ("name the --project whose", "preempt one", "preempt one --project P"),
    (
        "--apply drains host1 and --undo ends that",
        "drain host1 --apply --undo",
        "drain host1 --undo",
    ),
    ("--watch goes with --apply", "preempt one --watch 9 --project P", "preempt one --project P"),
    ("--count goes with a flavor", "preempt --count 1 --project P", "preempt --project P"),
    ("--since goes without", "preempt one --since 9 --project P", "preempt --since 9 --project P"),
    ("--undo goes without a flavor", "preempt one --undo", "preempt --undo"),
    ("is not a number of instances from 1 to", "plan one --count 0", "plan one --count 1"),
    ("is not a number of seconds above 0 and", "host list --timeout 0", "host list --timeout 9"),
    ("needs --gpus, --vgpus or both", "flavor create a", "flavor create a --gpus 1"),
    (
        "--project is of no use without --private",
        "flavor create b --gpus 1 --project P",
        "flavor create b --gpus 1 --project P --private",
    ),
    (
        "contradicts the options, which say",
        "flavor create c --gpus 1 --property gpus=2",
        "flavor create c --gpus 1",
    ),
    (
        "a flavor plain without properties exists",
        "flavor create plain --gpus 1",
        "flavor create with-gpus --gpus 1",
    ),
    (
        "--describe-for egi: the flavor does not say its Accelerator:Vendor and Accelerator:Model, "
        "without which EGI's accounting ignores it",
        "flavor create d --gpus 1 --describe-for egi",
        "flavor create d --gpus 1 --describe-for egi --model tesla_m2090",
    ),
    (
        "the flavor does not say whose GPUs",
        "flavor create SCS-1V-1 --gpus 1 --describe-for scs",
        "flavor create SCS-1V-1 --gpus 1 --describe-for scs --arch fermi",
    ),
    (
        "the flavor's name e is no name of SCS",
        "flavor create e --gpus 1 --arch fermi --describe-for scs",
        "flavor create SCS-2V-1 --gpus 1 --arch fermi --describe-for scs",
    ),
    (
        "in the flavor's name contradicts",
        "flavor create SCS-4V-1_GA --gpus 1 --arch fermi --describe-for scs",
        "flavor create SCS-4V-1_GNf --gpus 1 --arch fermi --describe-for scs",
    ),
    (
        "the flavor asks for no GPU: neither gpus, vgpus nor resources:PGPU",
        "capacity plain",
        "capacity one",
    ),
    ("no GPU of any host satisfies the flavor", "capacity nowhere", "group list; capacity one"),
    (
        "Nova cannot read the flavor's hw:cpu_* properties",
        "capacity 9999",
        "flavor create mixed --gpus 1 --vcpus 2 --property hw:cpu_policy=mixed"
        " --property hw:cpu_dedicated_mask=0; capacity mixed",
    ),
    ("has a vCPU number above", "capacity 9999", "capacity mixed"),
    (
        "no flavor asks for whole GPUs, without gpu:topology, that a host has",
        "DELETE; defrag",
        "flavor create whole --gpus 1; defrag",
    ),
)
_HERE = "extensions/fleet/tests/functional/test_refused_commands.py"
# Those that another test gets, and does what the page says
ELSEWHERE = {
    "Placement: ...": _HERE,
    "did not answer GET within 60 s": "tests/unit/osc_gpu/test_consumers.py",
    "is still being built after": "extensions/fleet/tests/unit/osc_fleet/test_create.py",
    "Nova is still busy with": "extensions/fleet/tests/unit/osc_fleet/test_start.py",
    "Nova refused that (": "extensions/fleet/tests/unit/osc_fleet/test_start.py",
    "no moves were found that make room for": _HERE,
    "make room for ...; there is room": "extensions/fleet/tests/functional/test_preemption.py",
    "found no host in": "extensions/fleet/tests/unit/osc_fleet/test_create.py",
    "Keystone has no project": "tests/unit/osc_gpu/test_projects.py",
    "several projects are called": "tests/unit/osc_gpu/test_projects.py",
    "left alone, because it has changed": (
        "extensions/fleet/tests/unit/osc_fleet/test_preemption_candidates.py"
    ),
    "Placement still counts its GPUs": _HERE,
    "the requested host is drained": "extensions/fleet/tests/functional/test_room.py",
    "on hosts that keep them": "extensions/fleet/tests/functional/test_preemption.py",
    "could not be written": _HERE,
    "is not possible: retries create one": "extensions/fleet/tests/unit/osc_fleet/test_create.py",
    "is not after --start": "extensions/cardlife/tests/functional/test_service_report.py",
    "is over; times are in UTC": "extensions/cardlife/tests/functional/test_service_report.py",
    "characters, and Nova keeps": "extensions/cardlife/tests/functional/test_service_report.py",
    "is not a time such as": "extensions/cardlife/tests/functional/test_service_report.py",
    "no maintenance is called": "extensions/cardlife/tests/functional/test_service_report.py",
    "has no passport of a card": "extensions/cardlife/tests/unit/osc_cardlife/test_passport.py",
    "name files of [gpu]passport_folder": (
        "extensions/cardlife/tests/unit/osc_cardlife/test_passport.py"
    ),
    "none of the files has a card": "extensions/cardlife/tests/unit/osc_cardlife/test_passport.py",
    "is no number of seconds above 0": "extensions/migrate/tests/unit/stock/cmd/test_adopt.py",
    "no host has reported GPUs": _HERE,
    "no host has whole GPUs": _HERE,
    "there is no command": "tests/unit/cmd/test_gpu.py",
    "there is no GPU at": "tests/unit/cmd/test_topology.py",
    "is not in quarantine": "tests/unit/cmd/test_gpu.py",
    "guests of this host use its cards": "tests/unit/cmd/test_host_prepare.py",
    "this host has no card to prepare": "tests/unit/cmd/test_host_prepare.py",
    "is left out: ": "tests/unit/cmd/test_host_prepare.py",
    "is bound when a guest gets it": "tests/unit/cmd/test_host_prepare.py",
    "is built into the kernel and": "tests/unit/cmd/test_host_prepare.py",
    "gives vfio-pci the ids": "tests/unit/cmd/test_host_prepare.py",
    "nova-compute was started on": "extensions/migrate/tests/unit/stock/cmd/test_adopt.py",
    "is not the output of this version's": "extensions/migrate/tests/unit/osc_stock/test_shadow.py",
    "is not JSON (": "extensions/migrate/tests/unit/osc_stock/test_shadow.py",
    "is of the host": "extensions/migrate/tests/unit/osc_stock/test_shadow.py",
}
_FLAVORS = {
    "one": {"gpus": "1"},
    "one-moving": {"gpus": "1", "gpu:move": "cold"},
    "four": {"gpus": "4", "gpu_arch": "s== fermi"},
    "kepler": {"gpus": "1", "gpu_arch": "kepler"},
    "spot": {"gpus": "1", "gpu:preemptible": "0s", "gpu:on_stop": "release"},
    "topology": {"gpus": "2", "gpu:topology": "numa", "gpu:topology_policy": "required"},
    "near": {"gpus": "2", "gpu:near": "nic", "gpu:near_policy": "required"},
    "both": {"gpus": "1", "vgpus": "1"},
    "nowhere": {"gpus": "1", "gpu:model": "<in> h100"},
    "9999": {"gpus": "1", "hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-9999"},
    "plain": {},
}


@functools.cache
def _commands() -> dict[str, type]:
    points = metadata.entry_points(group="openstack.gpu.v1")
    return {point.name.replace("_", " ")[4:]: point.load() for point in points}


class RefusedCommandsTest(room.RoomTestBase):
    def test_each_text_has_a_row(self) -> None:
        done = [text for text, *_ in COMMANDS] + list(ELSEWHERE)
        page = (ROOT / "doc/source/admin/troubleshooting-commands.rst").read_text()
        entries = re.findall(r"(?m)^``.*(?=\n   )", page)
        texts = [text for entry in entries for text in re.findall("``(.+?)``", entry)]
        self.assertGreater(len(texts), 50)
        for text in texts:
            pattern = messages.pattern(text)
            self.assertTrue(any(re.search(pattern, one) or one in text for one in done), text)
        for module in ELSEWHERE.values():
            self.assertTrue((ROOT / module).is_file(), module)

    def test_each_command(self) -> None:
        self.ids = {name: self.flavor(name, **specs) for name, specs in _FLAVORS.items()}
        self.firm = self.boot(self.ids["one"], host="host1", name="firm")
        for text, typed, remedy in COMMANDS:
            with self.subTest(text):
                self.assertIn(text, self.typed(typed))
                self.assertEqual("", self.typed(remedy))

    def typed(self, lines: str) -> str:
        """Return the error of the last of *lines*."""
        *before, last = (line.strip() for line in lines.split(";"))
        for line in before:
            self.one(line)
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            try:
                self.one(last)
            except exceptions.CommandError as error:
                return str(error)
            except SystemExit:
                return errors.getvalue()
        return ""

    def one(self, line: str) -> None:
        admin = not line.startswith("demo: ")
        words = shlex.split(line.removeprefix("demo: ").replace(" P", f" {self.api.project_id}"))
        if words[0] == "DELETE":
            compute = sdk.connect(self).compute
            for flavor in list(compute.flavors(is_public=None)):
                compute.delete_flavor(flavor)
        elif words[0] == "RESIZE":
            self._resize_server(self.firm, self.ids["one-moving"])
            self.confirm(self.firm, "host1")
        else:
            length = next(n for n in (2, 1) if " ".join(words[:n]) in _commands())
            sdk.run(self, _commands()[" ".join(words[:length])], *words[length:], admin=admin)

    def test_others_write_meanwhile(self) -> None:
        with mock.patch.object(host_closing, "_put", lambda *_: False):
            refused = self.typed("drain host2 --apply")
        self.assertIn("could not be written: others changed it", refused)
        self.assertEqual("", self.typed("drain host2 --apply"))

    def test_no_moves_in_time(self) -> None:
        four = self.flavor("four", **_FLAVORS["four"])
        with mock.patch.object(search, "MOST_HOSTS", 1):
            refused = self.typed("plan four --count 3")
            self.assertIn("no moves were found that make room for 3 of four", refused)
            self.assertIn(
                "of the GPUs that the flavor asks for 11 are free, and 12 needed", refused
            )
            self._delete_server(self.server)
            self.assertEqual("", self.typed("plan four --count 3"))
        self.boot(four)

    def test_a_stop_that_takes_long(self) -> None:
        self.flavor("kepler4", gpus="4", gpu_arch="kepler")
        self.boot(self.flavor("spot", **{**_FLAVORS["spot"], "gpu_arch": "kepler"}))
        stop = rpcapi.ComputeAPI.stop_instance
        stops: list[Callable[[], None]] = []

        def later(*to: Any, **how: Any) -> None:
            stops.append(functools.partial(stop, *to, **how))

        preempt = "preempt kepler4 --apply --notice 1 --project P"
        with (
            mock.patch.object(preemption, "_PATIENCE_S", 0.2),
            mock.patch.object(rpcapi.ComputeAPI, "stop_instance", later),
        ):
            self.assertIn("Placement still counts its GPUs 0.2 s after", self.typed(preempt))
        stops[0]()
        self.assertEqual("", self.typed(preempt))
        self.assertEqual("", self.typed(f"{_CREATE} --flavor kepler4 one"))

    def test_placement_cannot_be_reached(self) -> None:
        with mock.patch.object(self.placement.fixture, "endpoint", "http://127.0.0.1:9"):
            refused = self.typed("group list")
        self.assertIn("Placement: Unable to establish connection to http://127.0.0.1:9", refused)
        self.assertEqual("", self.typed("group list"))

    def test_nothing_to_list(self) -> None:
        vgpus = [
            dataclasses.replace(group, resource_class="VGPU")
            for group in group_list.read(sdk.connect(self))
        ]
        for groups, line, text in (
            ([], "group list", "no host has reported GPUs"),
            ([], "host list", "no host has reported GPUs"),
            (vgpus, "host list", "no host has whole GPUs; openstack gpu group list has the vGPUs"),
        ):
            command = _commands()[line]
            with mock.patch.object(group_list, "read", return_value=groups):
                self.assertIn(text, sdk.run(self, command)[1])
            self.assertEqual("", sdk.run(self, command)[1])
