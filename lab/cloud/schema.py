# SPDX-License-Identifier: Apache-2.0
"""Starts MariaDB with a database for each service, and keeps a copy of new databases.

To create them takes longer than the rest of `up`, and their content is always the same. So the
files of the stopped server are copied once, and each later `up` starts with that copy.
"""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable

from lab.cloud import config, ports, process, services, settings, steps

_MARIADB = "mariadb"


def start_mariadb(lab: settings.Lab) -> None:
    """Start MariaDB with the files of databases that exist, and wait until it listens."""
    port = lab.ports.mariadb
    argv = ["mariadbd", "--no-defaults", f"--user={settings.USER}", f"--port={port}"]
    argv += [f"--datadir={lab.state}/mariadb", f"--socket={lab.state}/mariadb.sock"]
    argv += ["--bind-address=127.0.0.1", "--max-connections=300", "--skip-log-bin"]
    if isinstance(lab, settings.DebianLab):
        argv = ["mariadbd", f"--user={lab.user(_MARIADB)}"]
    argv += [f"--init-file={lab.etc}/mariadb/mariadb.sql", "--innodb-flush-log-at-trx-commit=0"]
    process.start(lab, _MARIADB, argv)

    def listens() -> bool:
        process.check(lab, _MARIADB)
        return port in ports.listeners([port])

    steps.wait_for("MariaDB to listen", listens)


def prepare(lab: settings.Lab) -> None:
    """Start MariaDB with new databases: from the copy, or created and then copied."""
    state = lab.cache / "state"
    stamp = lab.cache / "state.digest"
    wanted = config.digest(lab)
    shutil.rmtree(lab.state, ignore_errors=True)
    if stamp.exists() and stamp.read_text() == wanted:
        with steps.step("databases, as kept from the first run", process.log_file(lab, _MARIADB)):
            _copy(state, lab.state)
            start_mariadb(lab)
        return
    stamp.unlink(missing_ok=True)
    with steps.step("MariaDB, installed", lab.log / "mariadb-install.log"):
        _install(lab)
        start_mariadb(lab)
    sync(lab)
    with steps.step("databases, kept for the next run", process.log_file(lab, _MARIADB)):
        process.stop(lab, _MARIADB)
        shutil.rmtree(state, ignore_errors=True)
        _copy(lab.state, state)
        stamp.write_text(wanted)
        start_mariadb(lab)


def sync(lab: settings.Lab) -> None:
    """Create the tables of all services, at the same time."""
    steps.together(*(_synced(lab, name, commands) for name, commands in _commands(lab).items()))


def _install(lab: settings.Lab) -> None:
    for folder in (lab.state, lab.state / "mariadb", lab.state / "keystone", lab.state / "nova"):
        folder.mkdir(parents=True)
        shutil.chown(folder, settings.USER, settings.USER)
        folder.chmod(0o711 if folder == lab.state else 0o750)
    argv = ["mariadb-install-db", "--no-defaults", f"--user={settings.USER}", "--skip-test-db"]
    argv += [f"--datadir={lab.state}/mariadb", "--auth-root-authentication-method=socket"]
    steps.run(argv, lab.log / "mariadb-install.log")


def _commands(lab: settings.Lab) -> dict[str, list[list[str]]]:
    """Return the commands that create the tables of each service, in their order."""
    user = lab.user("keystone")
    owner = [f"--keystone-user={user}", f"--keystone-group={user}"]
    identity = f"{lab.url('keystone')}/v3"
    keystone = ["keystone-manage", "--config-file", f"{lab.etc}/keystone/keystone.conf"]
    nova = ["nova-manage", *services.controller_options(lab)]
    return {
        "keystone": [
            [*keystone, "db_sync"],
            [*keystone, "fernet_setup", *owner],
            [*keystone, "credential_setup", *owner],
            [*keystone, "bootstrap"]
            + [f"--bootstrap-{kind}-url={identity}" for kind in ("public", "internal", "admin")]
            + ["--bootstrap-region-id", settings.REGION],
        ],
        "glance": [
            ["glance-manage", "--config-file", f"{lab.etc}/glance/glance-api.conf", "db_sync"]
        ],
        "placement": [["placement-manage", "--config-dir", f"{lab.etc}/placement", "db", "sync"]],
        "nova": [
            [*nova, "api_db", "sync"],
            [*nova, "cell_v2", "map_cell0"],
            [*nova, "db", "sync"],
            [*nova, "cell_v2", "create_cell", "--name", "cell1"],
        ],
    }


def _synced(lab: settings.Lab, name: str, commands: list[list[str]]) -> Callable[[], None]:
    log = lab.log / f"{name}-database.log"
    # All users can read a command line, and the log.
    environment = {**lab.environment(), "OS_BOOTSTRAP_PASSWORD": lab.password}

    def synced() -> None:
        with steps.step(f"database of {name}", log):
            for program, *words in commands:
                argv = process.as_user(lab.user(name), [lab.program(program), *words])
                steps.run(argv, log, environment, pathlib.Path("/"))

    return synced


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    steps.run(["cp", "--archive", str(source), str(target)], pathlib.Path("/dev/null"))
