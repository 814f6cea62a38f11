# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu``: shows and prepares the GPUs of the host that it runs on.

Only ``host prepare`` with ``--apply`` or ``--undo``, ``verify --repair``, ``quarantine release``
and commands of extensions change anything.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import logging as python_logging
import sys
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log as logging

from nova_gpu.cmd import arguments, options, output
from nova_gpu.conf import CONF, novas
from nova_gpu.core import exception

_PROG = "nova-gpu"
_COMMAND = cfg.SubCommandOpt(
    "command", title="Commands", help="The command to run", handler=arguments.add_commands
)
# What these loggers say, some with a traceback, is in the verdict of verify, which alone imports
# them: it is what was not compared.
_IN_THE_VERDICT = ("nova.virt.libvirt.host", "oslo.messaging", "oslo_messaging", "oslo_service")
_SERVICE = "exporter"
# Options of nova-compute by which a command that only reads would write: into a log file, which it
# creates in [DEFAULT]log_dir, into the system's log, or to the message bus.
_OTHER_LOGS = {
    **dict.fromkeys(("log_config_append", "log_file", "log_dir")),
    **dict.fromkeys(("use_syslog", "use_journal", "publish_errors"), False),
}
_NO_LIBVIRT = (
    "nova-gpu: the Python module libvirt is not installed: this is not a compute host, or the "
    "package python3-libvirt (libvirt-python) is missing where Nova is installed"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``nova-gpu``.

    :returns: the exit status: 0; 1 if the host or the options cannot be read, or the command
        reports a problem; 2 for an invalid command line; 3 if ``verify`` cannot read all sources
    """
    CONF.register_cli_opt(_COMMAND)
    # oslo.config's completion knows no commands, and most of its packages lack the file for it.
    # Before its 9.6 there is none.
    with contextlib.suppress(cfg.ArgsAlreadyParsedError, AttributeError):
        CONF.unregister_opt(cfg.ConfigOpts._shell_completion_opt)
    CONF.supported_shell_completion = []
    line = list(sys.argv if argv is None else argv)
    try:
        with output.while_read():
            if line[1:] in ([], ["-h"], ["--help"]):
                _print_help()
                return 0 if line[1:] else 2
            options.read(line[1:], _PROG)
            _set_up_log()
            if CONF.command.name is None:
                _print_help()
                return 2
            return _run(line)
    except exception.InvalidPciAddress as error:
        print(f"nova-gpu: {error}", file=sys.stderr)
        return 2
    except (exception.GPUError, *options.Unreadable) as error:
        print(f"nova-gpu: {options.message(error)}", file=sys.stderr)
    except novas.raised() as error:
        print(f"nova-gpu: {options.message(error)}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if error.name != "libvirt":
            raise
        print(_NO_LIBVIRT, file=sys.stderr)
    return 1


def _print_help() -> None:
    """Print the commands, and then the options of all of them but oslo.log's."""
    usage = f"{_PROG} [options] COMMAND ..."
    parser = argparse.ArgumentParser(usage=usage, add_help=False)
    arguments.add_commands(parser.add_subparsers(title="commands", metavar="COMMAND"))
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        CONF(["--help"], "nova", _PROG, default_config_files=[])
    _, title, of_all = text.getvalue().partition("\noptions:\n")
    print(parser.format_help(), title, of_all.partition("\nCommands:\n")[0].rstrip(), sep="")
    print("\nand those of oslo.log, such as --debug and --log-file FILE.")


def _set_up_log() -> None:
    """Log on standard error, and elsewhere only if the command line says so.

    The exporter, which is a service, also follows nova-compute's options.
    """
    CONF.set_default("use_stderr", True)
    if CONF.command.name != _SERVICE:
        # Without it and without a file oslo.log would take standard output, which is the table's.
        CONF.set_override("use_stderr", True)
        for name, value in _OTHER_LOGS.items():
            source = CONF.get_location(name)
            if source is None or source.location is not cfg.Locations.command_line:
                CONF.set_override(name, value)
    logging.setup(CONF, _PROG)


def _run(line: list[str]) -> int:
    """Import only the module of the command and run it; return its exit status."""
    for name in () if CONF.debug else _IN_THE_VERDICT:
        python_logging.getLogger(name).setLevel(python_logging.CRITICAL)
    command = CONF.command
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if error.name != "libvirt" or command.module != "nova_gpu.cmd.topology":
            raise
        module = importlib.import_module("nova_gpu.cmd.card_facts")
    # Imported modules stay until the end. No collection looks through them any more, not even the
    # interpreter's last one, which takes a fifth of the processor time of nova-gpu list.
    gc.freeze()
    return int(module.run(command, line))
