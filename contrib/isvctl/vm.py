# SPDX-License-Identifier: Apache-2.0
"""The steps of the suite ``vm`` of NVIDIA's AI Cloud Validation, for OpenStack.

``python vm.py STEP ...`` prints one JSON object, and exits with 1 unless it has ``success``. The
cloud is that of ``OS_CLOUD`` or the other variables of openstacksdk.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import openstack

_STATES = {"ACTIVE": "running", "SHUTOFF": "stopped", "ERROR": "error", "BUILD": "provisioning"}
_SSH = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
_SNIPPET = 500


def launch_instance(cloud: Any, args: argparse.Namespace) -> Mapping[str, Any]:
    compute = cloud.compute
    network = os.environ["ISV_NETWORK"]
    key = compute.create_keypair(name=f"{args.name}-{os.getpid()}")
    key_file = pathlib.Path(os.environ.get("ISV_KEYS", "/tmp"), f"{key.name}.pem")
    with open(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key.private_key)
    group = os.environ.get("ISV_SECURITY_GROUP", "default")
    server = compute.create_server(
        name=args.name,
        flavor_id=compute.find_flavor(args.instance_type, ignore_missing=False).id,
        image_id=os.environ["ISV_IMAGE"],
        networks=network if network in ("none", "auto") else [{"uuid": network}],
        key_name=key.name,
        security_groups=[{"name": group}],
        metadata={"Name": args.name, "CreatedBy": "isvtest"},
    )
    server = compute.wait_for_server(server, wait=args.wait)
    return {
        **_described(server),
        "key_file": str(key_file),
        "vpc_id": network,
        "security_group_id": group,
        "requested_key_name": key.name,
        "key_name": server.key_name,
    }


def list_instances(cloud: Any, args: argparse.Namespace) -> Mapping[str, Any]:
    listed = [
        {"instance_id": server.id, "state": _state(server)}
        for server in cloud.compute.servers()
        if args.instance_id in (None, server.id)
    ]
    return {"instances": listed, "total_count": len(listed)}


def verify_tags(cloud: Any, args: argparse.Namespace) -> Mapping[str, Any]:
    tags = dict(cloud.compute.get_server(args.instance_id).metadata)
    return {"instance_id": args.instance_id, "tags": tags, "tag_count": len(tags)}


def describe_instance(cloud: Any, args: argparse.Namespace) -> Mapping[str, Any]:
    server = cloud.compute.get_server(args.instance_id)
    return {**_described(server), "key_file": args.key_file}


def serial_console(cloud: Any, args: argparse.Namespace) -> Mapping[str, Any]:
    text = cloud.compute.get_server_console_output(args.instance_id)["output"] or ""
    return {
        "instance_id": args.instance_id,
        "console_available": True,
        "serial_access_enabled": True,
        "output_length": len(text),
        "output_snippet": text[-_SNIPPET:],
    }


def stop_instance(cloud: Any, args: argparse.Namespace) -> Mapping[str, Any]:
    cloud.compute.stop_server(args.instance_id)
    server = _wait(cloud, args, "SHUTOFF")
    return {"instance_id": server.id, "state": _state(server), "stop_initiated": True}


def start_instance(cloud: Any, args: argparse.Namespace) -> Mapping[str, Any]:
    cloud.compute.start_server(args.instance_id)
    return {**_back(cloud, args), "start_initiated": True}


def reboot_instance(cloud: Any, args: argparse.Namespace) -> Mapping[str, Any]:
    cloud.compute.reboot_server(args.instance_id, "HARD")
    back = _back(cloud, args)
    return {**back, "reboot_initiated": True, "uptime_seconds": _uptime(args)}


def teardown(cloud: Any, args: argparse.Namespace) -> Mapping[str, Any]:
    compute = cloud.compute
    server = compute.get_server(args.instance_id)
    if args.skip_destroy:
        return {"resources_deleted": [], "message": f"{server.id} was kept"}
    compute.delete_server(server.id)
    compute.wait_for_delete(server, wait=args.wait)
    deleted = [server.id]
    if args.delete_key_pair and server.key_name:
        compute.delete_keypair(server.key_name)
        deleted.append(server.key_name)
    return {"resources_deleted": deleted, "message": f"deleted {' and '.join(deleted)}"}


STEPS: Mapping[str, Callable[[Any, argparse.Namespace], Mapping[str, Any]]] = {
    step.__name__: step
    for step in (
        *(launch_instance, list_instances, verify_tags, describe_instance, serial_console),
        *(stop_instance, start_instance, reboot_instance, teardown),
    )
}


def _state(server: Any) -> str:
    return _STATES.get(server.status, server.status.lower())


def _described(server: Any) -> Mapping[str, Any]:
    """Return the identity of a server, and its floating IP address, else its first one."""
    ports = [port for ports in (server.addresses or {}).values() for port in ports]
    ports.sort(key=lambda port: port.get("OS-EXT-IPS:type") != "floating")
    address = server.access_ipv4 or next((port["addr"] for port in ports), "")
    return {"instance_id": server.id, "state": _state(server), "public_ip": address}


def _wait(cloud: Any, args: argparse.Namespace, status: str) -> Any:
    server = cloud.compute.get_server(args.instance_id)
    return cloud.compute.wait_for_server(server, status=status, wait=args.wait)


def _back(cloud: Any, args: argparse.Namespace) -> Mapping[str, Any]:
    described = _described(_wait(cloud, args, "ACTIVE"))
    deadline = time.monotonic() + args.wait
    while not (uptime := _uptime(args)) and time.monotonic() < deadline:
        time.sleep(2)
    return {**described, "key_file": args.key_file, "ssh_ready": uptime is not None}


def _uptime(args: argparse.Namespace) -> int | None:
    """Return the guest's uptime in seconds, ``None`` if it does not answer."""
    where = f"{os.environ.get('ISV_USER', 'ubuntu')}@{args.public_ip}"
    command = ["ssh", "-i", args.key_file, *_SSH, "-o", "ConnectTimeout=5", where]
    answer = subprocess.run(
        [*command, "cat /proc/uptime"], capture_output=True, text=True, check=False, timeout=60
    )
    return int(float(answer.stdout.split()[0])) if answer.returncode == 0 else None


def run(cloud: Any, words: Sequence[str]) -> Mapping[str, Any]:
    """Return the JSON object of one step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=sorted(STEPS))
    for option in ("name", "instance-type", "region", "vpc-id", "instance-id"):
        parser.add_argument(f"--{option}")
    for option in ("key-file", "key-name", "public-ip"):
        parser.add_argument(f"--{option}", default="")
    for option in ("delete-key-pair", "delete-security-group", "skip-destroy"):
        parser.add_argument(f"--{option}", action="store_true")
    parser.add_argument("--wait", type=int, default=600, help="Seconds for each wait")
    args = parser.parse_args(words)
    try:
        answer = STEPS[args.step](cloud, args)
    except Exception as e:  # noqa: BLE001  the suite reads in the object whatever fails
        return {"success": False, "platform": "vm", "error": f"{type(e).__name__}: {e}"}
    success = answer.get("ssh_ready", True)
    return {"success": success, "platform": "vm", **answer}


def main() -> int:
    answer = run(openstack.connect(), sys.argv[1:])
    print(json.dumps(answer, indent=2))
    return 0 if answer["success"] else 1


if __name__ == "__main__":
    sys.exit(main())
