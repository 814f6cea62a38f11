# SPDX-License-Identifier: Apache-2.0
"""The devstack plugin's functions, in the order in which devstack calls them.

What they call of devstack's is written here anew, as its functions-common and inc/ini-config have
it; what they make of nova.conf is compared with the samples, which is what the lab runs with.
"""

from __future__ import annotations

import pathlib
import subprocess
import tempfile
import unittest

from oslo_config import cfg

ROOT = pathlib.Path(__file__).parents[2]
_DEVSTACK = r"""
set -eu
function define_plugin { echo "plugin $1"; }
function is_service_enabled {
    local each
    for each in "$@"; do [[ " $SERVICES " != *" $each "* ]] || return 0; done
    return 1
}
function setup_develop { echo "develop $*"; }
function openstack { echo "openstack $*"; }
function iniset { printf 'set\t%s\t%s\t%s\n' "$2" "$3" "$4" >>"$1"; }
function iniset_multiline {
    local file=$1 section=$2 option=$3
    shift 3
    printf "lines\t$section\t$option" >>"$file"
    printf '\t%s' "$@" >>"$file"
    echo >>"$file"
}
DEST=/opt/stack
NOVA_FILTERS=ComputeFilter,SameHostFilter
LIBVIRT_TYPE=kvm
source "$PLUGIN/override-defaults"
source "$PLUGIN/settings"
while read -r phase; do source "$PLUGIN/plugin.sh" $phase; done
echo "virt $VIRT_DRIVER $LIBVIRT_TYPE"
"""
_STACK = (
    *("stack pre-install", "stack install", "stack post-config", "stack extra"),
    "stack test-config",
)


class PluginTest(unittest.TestCase):
    def setUp(self) -> None:
        self.conf = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "nova.conf")

    def run_plugin(self, services: str, *phases: str, **variables: str) -> list[str]:
        """What it prints, line by line; :meth:`options` has what it sets."""
        self.conf.write_text("")
        done = subprocess.run(
            ["bash", "-c", _DEVSTACK],
            input="".join(f"{phase}\n" for phase in phases or _STACK),
            env={
                "PATH": "/usr/bin:/bin",
                "PLUGIN": str(ROOT / "devstack"),
                "NOVA_CONF": str(self.conf),
                "SERVICES": services,
                **variables,
            },
            capture_output=True,
            text=True,
        )
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        return done.stdout.splitlines()

    def options(self) -> dict[tuple[str, str], list[str]]:
        """The values by section and option; an option that is set again has the last one."""
        options = {}
        for line in self.conf.read_text().splitlines():
            how, section, option, *values = line.split("\t")
            self.assertIn(how, ("set", "lines"))
            options[section, option] = values
        return options

    def sample(self, name: str) -> dict[tuple[str, str], list[str]]:
        sections: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(str(ROOT / "etc/nova" / name), sections).parse()
        options = {(group, key): v for group, own in sections.items() for key, v in own.items()}
        options.pop(("libvirt", "virt_type"), None)  # by LIBVIRT_TYPE
        if ("filter_scheduler", "enabled_filters") in options:
            options["filter_scheduler", "enabled_filters"] = [
                "ComputeFilter,SameHostFilter,GPUFilter"
            ]
        return options

    def test_all_in_one(self) -> None:
        printed = self.run_plugin("n-api n-sch n-cpu")
        self.assertEqual("plugin nova-gpu", printed[0])
        self.assertIn("develop /opt/stack/nova-gpu nova", printed)
        self.assertIn("virt libvirt lxc", printed)
        (flavor,) = (line for line in printed if "flavor create" in line)
        self.assertIn("flavor create cg1.xlarge", flavor)
        self.assertIn("hypervisor=s== LXC", flavor)
        both = self.sample("nova-compute.conf.sample") | self.sample("nova-scheduler.conf.sample")
        self.assertEqual(both, self.options())

    def test_hosts_apart(self) -> None:
        self.run_plugin("n-cpu")
        self.assertEqual(self.sample("nova-compute.conf.sample"), self.options())
        self.run_plugin("n-sch n-cond")
        self.assertEqual(self.sample("nova-scheduler.conf.sample"), self.options())

    def test_kvm(self) -> None:
        printed = self.run_plugin("n-api n-cpu", NOVA_GPU_VIRT_TYPE="kvm")
        self.assertIn("virt libvirt kvm", printed)
        self.assertEqual(self.sample("nova-compute-kvm.conf.sample"), self.options())
        self.assertTrue([line for line in printed if "hypervisor=s== KVM" in line])
