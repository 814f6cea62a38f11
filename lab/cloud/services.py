# SPDX-License-Identifier: Apache-2.0
"""Starts the cloud's services, and waits until each is ready."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from lab.cloud import nonet, ports, process, rest, settings, steps

_APIS = {
    "keystone": "keystone.wsgi.api",
    "glance": "glance.wsgi.api",
    "placement": "placement.wsgi.api",
    "nova-api": "nova.wsgi.osapi_compute",
}
# In the order in which they are stopped, after the compute hosts' own.
CONTROLLER = (
    "nova-scheduler",
    "nova-conductor",
    *reversed(_APIS),
    "neutron",
    "rabbitmq",
    "mariadb",
)
# Long enough for a busy machine; a process that has ended is noticed at once.
_TIMEOUT_S = 600.0


def names(lab: settings.Lab) -> list[str]:
    """Return the names of the lab's daemons, in the order in which they are stopped."""
    return [*(host.daemon for host in lab.hosts), *CONTROLLER]


def start_rabbitmq(lab: settings.Lab) -> None:
    """Start RabbitMQ, and wait until it listens."""
    home, user = lab.state / "rabbitmq", lab.user("rabbitmq")
    home.mkdir(exist_ok=True)
    shutil.chown(home, user, user)
    loopback = "{127,0,0,1}"
    environment = {
        "HOME": str(home),
        "RABBITMQ_NODENAME": f"{lab.tag}@localhost",
        "RABBITMQ_CONFIG_FILE": f"{lab.etc}/rabbitmq/rabbitmq.conf",
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_ENABLED_PLUGINS_FILE": "/dev/null",
        "RABBITMQ_MNESIA_BASE": str(home),
        "RABBITMQ_LOG_BASE": str(home),
        "RABBITMQ_DIST_PORT": str(lab.ports.erlang),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(lab.ports.epmd),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+S 2:2 -kernel inet_dist_use_interface {loopback}",
    }
    _start(lab, "rabbitmq", ["/usr/lib/rabbitmq/bin/rabbitmq-server"], environment)
    _wait_for_port(lab, "rabbitmq", lab.ports.rabbitmq)


def start_neutron(lab: settings.Lab) -> None:
    """Start the script ``nonet`` in place of Neutron."""
    script = lab.folder / "nonet.py"
    shutil.copy(nonet.__file__, script)
    _start(lab, "neutron", [lab.program("python3"), str(script), str(lab.ports.neutron)], {})


def start_api(lab: settings.Lab, name: str) -> None:
    environment = {
        "GUNICORN_CMD_ARGS": f"--config {lab.etc}/gunicorn_settings.py",
        "LAB_MODULE": _APIS[name],
        "LAB_PORT": str(lab.ports.by_service()[name]),
        "OS_GLANCE_CONFIG_DIR": f"{lab.etc}/glance",
        "OS_KEYSTONE_CONFIG_DIR": f"{lab.etc}/keystone",
        "OS_NOVA_CONFIG_DIR": f"{lab.etc}/nova",
        "OS_NOVA_CONFIG_FILES": ";".join(["api-paste.ini", *lab.controller_files]),
        "OS_PLACEMENT_CONFIG_DIR": f"{lab.etc}/placement",
    }
    _start(lab, name, [lab.program("gunicorn")], environment)


def wait_for_api(lab: settings.Lab, name: str) -> None:
    def ready() -> bool:
        process.check(lab, name)
        return rest.answers(lab.url(name) + ("/v3" if name == "keystone" else "/"))

    steps.wait_for(f"{name} to answer at {lab.url(name)}", ready, _TIMEOUT_S)


def start_controller(lab: settings.Lab, name: str) -> None:
    """Start nova-scheduler or nova-conductor; Keystone must run, or they end at once."""
    _start(lab, name, [lab.program(name), *controller_options(lab)], {})


def wait_for_conductor(lab: settings.Lab, client: rest.Client) -> None:
    """Wait until the API knows nova-conductor; earlier calls of nova-compute would time out."""

    def ready() -> bool:
        process.check(lab, "nova-conductor")
        return bool(client.get("nova-api", "/v2.1/os-services?binary=nova-conductor")["services"])

    steps.wait_for("the API to know nova-conductor", ready, _TIMEOUT_S)


def controller_options(lab: settings.Lab) -> list[str]:
    """Return the --config-file options of Nova's services except nova-compute."""
    paths = [f"{lab.etc}/nova/{name}" for name in lab.controller_files]
    return [word for path in paths for word in ("--config-file", path)]


def gpu_providers(client: rest.Client) -> list[dict[str, str]]:
    """Return Placement's records of the resource providers that nova-gpu made."""
    providers = client.get("placement", "/resource_providers")["resource_providers"]
    return [provider for provider in providers if "_gpu_" in provider["name"]]


def map_host(lab: settings.Lab) -> None:
    """Map new compute hosts to the cell, so that the scheduler finds them."""
    argv = [lab.program("nova-manage"), *controller_options(lab)]
    argv = process.as_user(settings.USER, [*argv, "cell_v2", "discover_hosts"])
    steps.run(argv, lab.log / "nova-manage.log", lab.environment())


def _start(lab: settings.Lab, name: str, argv: Sequence[str], environment: dict[str, str]) -> None:
    argv = process.as_user(lab.user(name), lab.command(name, argv))
    process.start(lab, name, argv, environment)


def _wait_for_port(lab: settings.Lab, name: str, port: int) -> None:
    def ready() -> bool:
        process.check(lab, name)
        return port in ports.listeners([port])

    steps.wait_for(f"{name} to listen on port {port}", ready, _TIMEOUT_S)
