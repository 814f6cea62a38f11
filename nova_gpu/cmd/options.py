# SPDX-License-Identifier: Apache-2.0
"""Reading of a command's configuration files, and the line that reports a mistake in them.

Nova, which takes long to import, is not needed for it (:mod:`nova_gpu.conf.novas`).
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import glob
import importlib.metadata
import io
import os
import pathlib
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence

from oslo_config import cfg
from oslo_log import log as logging

from nova_gpu.conf import CONF, NOVAS, gpu
from nova_gpu.core import exception

# The errors of oslo.config for unreadable files, and for invalid values when they are first used.
Unreadable = (cfg.Error, OSError, ValueError)


def read(arguments: Sequence[str], prog: str) -> None:
    """Parse the command line and the configuration files into ``CONF``.

    The files are those that ``--config-file`` and ``--config-dir`` name, or else those of
    :func:`default_files`.

    :param arguments: the command line, without the program's name
    :raises cfg.Error, OSError, ValueError: if a file or a value is invalid; :func:`message`
        describes the error
    :raises SystemExit: for an invalid command line, and after --help
    """
    logging.register_options(CONF)
    version = f"{prog} {importlib.metadata.version('nova-gpu')}"
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            CONF(
                list(arguments),
                "nova",
                prog,
                version,
                default_config_files=default_files(prog),
            )
    except IsADirectoryError as error:
        reason = "it is a folder, for which there is --config-dir"
        raise cfg.ConfigFileParseError(str(error.filename), reason) from error
    except UnicodeDecodeError as error:
        path = next(_no_text(arguments, prog), "")
        raise cfg.ConfigFileParseError(path, f"it is not a UTF-8 text ({error})") from error
    finally:
        sys.stderr.write(_in_short(printed.getvalue(), prog))
    for name in CONF.gpu:
        CONF.gpu[name]  # nova-compute reads them all: any command says which is wrong


def _in_short(text: str, prog: str) -> str:
    """Return argparse's error without the usage of *prog*, which has all of oslo.log's options.

    Errors of one command keep their usage, which is short.
    """
    _, is_error, mistake = text.rpartition(f"\n{prog}: error: ")
    if not is_error:
        return text
    if choice := re.search("invalid choice: '(.*)' .choose from (.*)[)]", mistake):
        typed, commands = choice[1], re.findall("[a-z-]+", choice[2])
        alike = " or ".join(difflib.get_close_matches(typed, commands))
        hint = f"did you mean {alike}? " if alike else ""
        return f"{prog}: there is no command {typed}; {hint}commands: {', '.join(commands)}\n"
    return f"{prog}: {mistake.strip()}; see {prog} --help\n"


def default_files(prog: str) -> list[str]:
    """Return the files that are read if the command line names none.

    They are those of nova-compute: Debian's and Ubuntu's packages have options in their
    ``/etc/nova/nova-compute.conf`` that override nova.conf's, such as ``compute_driver``. The one
    of *prog* may be a link to it: what is read twice would have each value of a list twice.
    """
    paths = (
        path for name in ("nova-compute", prog) for path in cfg.find_config_files("nova", name)
    )
    return list({os.path.realpath(path): path for path in paths}.values())


def _no_text(arguments: Sequence[str], prog: str) -> Iterator[str]:
    """Yield the files that are not in UTF-8, as oslo.config's error does not name them."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("--config-file", action="append")
    files_given = parser.parse_known_args(list(arguments))[0].config_file
    for path in files_given or default_files(prog):
        try:
            pathlib.Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            yield path


def files() -> list[str]:
    """Return the paths of the configuration files that were read; later ones override."""
    folders = CONF.config_dir or []
    # The order in which oslo.config reads a folder.
    inside = [
        path for folder in folders for path in sorted(glob.glob(os.path.join(folder, "*.conf")))
    ]
    return [*(CONF.config_file or []), *inside]


def files_told() -> str:
    if paths := files():
        return f"options read from {', '.join(paths)}"
    return (
        "no configuration file was found, so that every option has its default; "
        "--config-file says where nova-compute's is"
    )


def message(error: BaseException) -> str:
    """Return the line for the operator about an *error* of an option or a configuration file."""
    match error:
        case cfg.ConfigFilesNotFoundError():
            return _of_files(error.config_files, "no such file", "give one that is there")
        case cfg.ConfigFilesPermissionDeniedError():
            remedy = "run this as root or as nova-compute's user"
            return _of_files(error.config_files, "permission denied", remedy)
        case cfg.ConfigDirNotFoundError():
            return _of_files([error.config_dir], "no such folder", "give one that is there")
        case cfg.ConfigFileParseError():
            reason = " ".join((error.msg or "it cannot be parsed").split())
            return _of_files([error.config_file], reason, "correct it")
        case cfg.ConfigSourceValueError():
            return next(_wrong_values(), str(error))
        case exception.InvalidOption():
            return f"{error}{_where(error.option, error.group)}"
    return str(error)


def _of_files(paths: Iterable[str], reason: str, remedy: str) -> str:
    return f"configuration file {', '.join(map(str, paths))}: {reason}; {remedy}"


def _wrong_values() -> Iterator[str]:
    """Yield the line for the operator about each option with an invalid value."""
    for conf, group, name in _options():
        try:
            conf[group][name] if group else conf[name]
        except ValueError as error:
            # oslo.config's own text has the reason after the repr() of the value's source.
            reason = error.__context__ or error
            where = _file_with(name, group or "DEFAULT")
            yield f"[{group or 'DEFAULT'}]{name}{where}: {reason}; correct the value"
        except cfg.Error:
            continue  # one that must be given and is not, which no command reads


def _options() -> Iterator[tuple[cfg.ConfigOpts, str | None, str]]:
    """Yield each registered option with its group, which is ``None`` for DEFAULT."""
    for conf in (CONF, NOVAS.conf()):
        for name in conf:
            try:
                value = conf[name]
            except (ValueError, cfg.Error):
                value = None
            if isinstance(value, cfg.ConfigOpts.GroupAttr):
                yield from ((conf, name, option) for option in value)
            else:
                yield conf, None, name


def _file_with(name: str, group: str) -> str:
    """Return what :func:`_where` does, for options with an invalid value, too."""
    for path in reversed(files()):
        if name in _names(path, group):
            return f" (in {path})"
    return ""


def unknown() -> Iterator[str]:
    """Yield a line for each option that a file sets in [gpu] and that does not exist."""
    known = {opt.name for opt in gpu.OPTS}
    former = {opt.name for named in gpu.OPTS for opt in named.deprecated_opts}
    for path in files():
        for name in _names(path, gpu.GROUP.name):
            if name not in known | former:
                alike = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {alike[0]}?" if alike else "remove it"
                yield f"[{gpu.GROUP.name}]{name} (in {path}): {hint}"


def _names(path: str, group: str) -> Collection[str]:
    """Return the names of the options that a file sets in *group*."""
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(path, sections).parse()
    return sections.get(group, {}).keys()


def _where(name: str, group: str | None) -> str:
    """Return `` (in PATH)`` for the file that sets a valid option, "" if no file does."""
    try:
        location = (CONF if group == "gpu" else NOVAS.conf()).get_location(name, group)
    except Unreadable:
        location = None
    return f" (in {location.detail})" if location and location.detail else ""
