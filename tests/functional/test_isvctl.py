# SPDX-License-Identifier: Apache-2.0
"""The provider of ``contrib/isvctl``: each step prints what the suite reads, by Nova's API."""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import tempfile
from unittest import mock

import yaml
from nova.virt.libvirt import driver

from tests.fixtures.checkout import ROOT
from tests.functional import base, sdk

_FOLDER = ROOT / "contrib" / "isvctl"


class StepsTest(base.GPUServersTestBase):
    def test_each_step(self) -> None:
        self.start_host("host1")
        flavor = self.flavor("one", gpus="1")
        folder = self.enterContext(tempfile.TemporaryDirectory())
        ssh = pathlib.Path(folder, "ssh")
        ssh.write_text("#!/bin/sh\necho 45.10 20.00\n")
        ssh.chmod(0o755)
        variables = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "ISV_IMAGE": base.IMAGE,
            "ISV_NETWORK": "none",
            "ISV_KEYS": folder,
        }
        self.enterContext(mock.patch.dict(os.environ, variables))
        # Guests of these tests have no console.
        patched = mock.patch.object(driver.LibvirtDriver, "get_console_output")
        self.enterContext(patched).return_value = "login: "
        module = runpy.run_path(str(_FOLDER / "vm.py"))
        contract = json.loads((_FOLDER / "contract.json").read_text())
        config = yaml.safe_load((_FOLDER / "vm.yaml").read_text())
        self.assertEqual(set(module["STEPS"]), contract.keys() - {"source"})
        cloud, outputs = sdk.connect(self), {}
        settings = {"{{region}}": "", "{{instance_type}}": flavor, "{{teardown_flag}}": ""}
        for step in config["commands"]["vm"]["steps"]:
            words = [
                settings[word] if word in settings else _referred(word, outputs)
                for word in step["args"]
                if word != "{{teardown_flag}}"
            ]
            name = step["command"].split()[-1]
            output = module["run"](cloud, [name, *words, "--wait", "60"])
            self.assertEqual((True, "vm"), (output["success"], output["platform"]), output)
            fields = {field: type(output.get(field)).__name__ for field in contract[name]}
            self.assertEqual(contract[name], fields)
            outputs[name] = json.loads(json.dumps(output))
        for name, state in (
            ("launch_instance", "running"),
            ("stop_instance", "stopped"),
            ("start_instance", "running"),
            ("reboot_instance", "running"),
            ("describe_instance", "running"),
        ):
            self.assertEqual(state, outputs[name]["state"], name)
        self.assertEqual({"Name", "CreatedBy"}, set(outputs["verify_tags"]["tags"]))
        self.assertEqual("login: ", outputs["serial_console"]["output_snippet"])
        self.assertEqual(1, outputs["list_instances"]["total_count"])
        key = outputs["launch_instance"]["key_name"]
        self.assertIn(key, outputs["teardown"]["resources_deleted"])
        self.assertEqual([], list(cloud.compute.servers()))
        gone = module["run"](cloud, ["stop_instance", "--instance-id", "none"])
        self.assertFalse(gone["success"])
        self.assertIn("none", gone["error"])


def _referred(word: str, outputs: dict[str, dict[str, str]]) -> str:
    """Return what the suite puts in the place of *word*."""
    if not word.startswith("{{steps."):
        return word
    _, step, field = word.strip("{}").split(".")
    return outputs[step][field]
