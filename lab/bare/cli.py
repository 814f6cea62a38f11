# SPDX-License-Identifier: Apache-2.0
"""tools/bare: runs one command of this repository in a newly installed Debian."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lab import packages, sources
from lab.bare import base, given, index, isolation, network
from lab.bare.store import Store
from lab.cloud import cgroups

ROOT = Path(__file__).resolve().parents[2]
_CACHE, _CACHE_VARIABLE = Path("/var/cache/nova-gpu"), "NOVA_GPU_CACHE"
_ARCHIVES = "var/cache/apt/archives"
_IMAGES = f"{isolation.CHECKOUT[1:]}/.tools/vm"
# The kinds of folders of lab/vm whose packages are downloaded.
_SYSTEMS = re.compile(r"[a-z]+-system-[0-9a-f]+")
_EPILOG = f"""\
The command runs in {isolation.CHECKOUT} of a root with Debian's packages of priority "important",
python3 and certificates: what is committed here, and nothing that it does not install itself.
The root has the machine's kernel and, where slirp4netns can make it one, a network of its own.
Afterwards the root is removed.

    tools/bare tools/lab demo           README's first command, as a new user meets it
    tools/bare --debian 13 tools/lab demo       the same on Debian 13
    tools/bare tools/test unit          the same for a suite
    tools/bare bash                     to look around

Packages that were downloaded are kept in /var/cache/nova-gpu (--cache, or {_CACHE_VARIABLE}) for
the next root, for a month. On the machine itself only mmdebstrap and slirp4netns are installed.
"""


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.command:
        parser.error("name the command to run")
    if reason := isolation.obstacle():
        return _fail(reason)
    began = time.monotonic()
    # Raise, so that the code that removes the root runs.
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    try:
        downloads = _no_cache() if options.cold else safe_cache(options.cache)
        with downloads as cache, tempfile.TemporaryDirectory() as folder:
            codename = base.CODENAMES[options.debian]
            paths = sources.files_of(codename, base.CODENAMES.values(), Path(folder))
            _install(("mmdebstrap", network.PACKAGE))
            acquire = given.acquire()
            archived = base.archive(Store(cache / "root"), codename, paths, acquire)
            with base.folder(options.parent, archived) as root:
                _say(f"bare root in {root}, {time.monotonic() - began:.0f} s")
                return _in(root, cache, given.machine(acquire, paths), options.command)
    except (
        *(base.RootFailed, network.NetworkFailed, packages.MachineNotReady),
        subprocess.CalledProcessError,
    ) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _in(root: Path, cache: Path, gives: given.Given, command: Sequence[str]) -> int:
    archives, images = Store(cache / "debs"), Store(cache / "images", sparse=True)
    if reason := network.obstacle():
        _say(f"the root shares the machine's network, so two clouds cannot run at once: {reason}")
    _clone(root)
    for path in gives.copied:
        target = root / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # a link in there would be followed out here
        shutil.copy(path, target)
    if not reason:
        _point_outside(root)
    bound = [path for path in gives.bound if not (root / path.relative_to("/")).exists()]
    source = upstream(gives.variables)
    archives.take_all(root / _ARCHIVES)
    images.take_folders(root / _IMAGES)
    groups = set(cgroups.all_guest_groups())  # they may outlive a root
    wheels = Store(cache / "wheels")
    with index.serving(source, wheels) as served:
        variables = index_variables(gives.variables, source, served.addresses)
        if not reason:
            variables = {name: network.inside(value) for name, value in variables.items()}
        try:
            return isolation.run(root, command, variables, bound, has_network=not reason)
        finally:
            _remove_groups(set(cgroups.all_guest_groups()) - groups)
            counts = [archives.keep((root / _ARCHIVES).glob("*.deb"))]
            counts += [len(served.fetched), _keep_systems(images, root / _IMAGES)]
            _say("new in the cache: {} of Debian, {} of the index, {} systems".format(*counts))
            for store in (archives, images, wheels, Store(cache / "root")):
                store.prune()


def _point_outside(root: Path) -> None:
    """Let the settings in *root* name this machine by its address in the root's own network."""
    file = root / "etc/resolv.conf"
    file.write_text(network.resolv_conf(file.read_text() if file.exists() else ""))
    for folder in ("apt.conf.d", "sources.list.d"):
        for path in (root / "etc/apt" / folder).glob("*"):
            if path.is_file() and (text := path.read_text()) != network.inside(text):
                path.write_text(network.inside(text))


def _remove_groups(groups: Iterable[cgroups.GuestGroup]) -> None:
    """Remove those control groups of LXC guests that have no process for a second.

    The guests were killed with the root. A group without a process may also be a new one of another
    run, but only for a moment.
    """
    empty = [group for group in groups if not group.pids]
    if empty:
        time.sleep(1.0)
    for group in empty:
        with contextlib.suppress(OSError):
            if not group.pids:
                cgroups.remove(group)


def _keep_systems(images: Store, made: Path) -> int:
    """Store the disk images that lab/vm made in the folder *made*; return how many were new."""
    paths = sorted(made.iterdir()) if made.is_dir() else []
    systems = [path for path in paths if path.is_dir() and _SYSTEMS.fullmatch(path.name)]
    return sum(images.keep_folder(path) for path in systems)


def _clone(root: Path) -> None:
    """Clone this checkout into *root*, without files that are not committed."""
    with tempfile.NamedTemporaryFile("w") as config:
        # The checkout may belong to another user, for example if CI made it.
        config.write("[safe]\n\tdirectory = *\n")
        config.flush()
        environ = {**os.environ, "GIT_CONFIG_GLOBAL": config.name}
        run = functools.partial(
            subprocess.run, env=environ, check=True, capture_output=True, text=True
        )
        git = ["git", "-C", str(ROOT)]
        try:
            changed = run([*git, "status", "--porcelain"]).stdout
            # By git's protocol, so that objects which a checkout borrows from another repository
            # are copied.
            clone = [*git, "clone", "--quiet", f"file://{ROOT}"]
            run([*clone, str(root / isolation.CHECKOUT[1:])])
        except FileNotFoundError as error:
            raise base.RootFailed(
                "git is not on PATH, and clones the checkout: install it"
            ) from error
        except subprocess.CalledProcessError as error:
            raise base.RootFailed(f"git clone of {ROOT} failed: {error.stderr.strip()}") from error
    if changed:
        count = len(changed.splitlines())
        _say(f"{count} files are not committed, so the root lacks them: see git status")


@contextlib.contextmanager
def safe_cache(wanted: Path) -> Iterator[Path]:
    """Yield the folder *wanted* as the cache, or a temporary one if other users may write there.

    Root runs programs from it, so only its owner, this user, may write to it.
    """
    try:
        wanted.mkdir(parents=True, exist_ok=True)
        status = wanted.stat()
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            yield wanted.resolve()
            return
        reason = "other users may write there"
    except OSError as error:
        reason = error.strerror or str(error)
    _say(f"{wanted} is not used as the cache: {reason}")
    with _no_cache() as folder:
        yield folder


@contextlib.contextmanager
def _no_cache() -> Iterator[Path]:
    """Yield a new folder as the cache, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="nova-gpu-cold-", dir="/var/tmp") as folder:
        yield Path(folder)


def _install(names: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "apt.log")
        try:
            added = packages.install(names, log)
        except packages.MachineNotReady as error:
            message = log.read_text(errors="replace").strip() if log.exists() else ""
            raise packages.MachineNotReady(f"{error}\n{message[-500:]}") from error
    if added:
        _say(f"installed {' '.join(added)} on this machine")


def _is_remote(address: str) -> bool:
    """Return whether the URL *address* is of an index that the local one can stand in for.

    It is not for a folder, nor for a URL with a user name, whose password only pip may send.
    """
    return address.startswith(("http://", "https://")) and "@" not in address


def upstream(variables: Mapping[str, str]) -> index.Upstream:
    """Return the indexes of pip's environment *variables* that the local one can stand in for.

    There are none if pip needs a client certificate for them.
    """
    if variables.get("PIP_CLIENT_CERT"):
        return index.Upstream(())
    indexes = [variables.get("PIP_INDEX_URL", index.PYPI)]
    indexes += variables.get("PIP_EXTRA_INDEX_URL", "").split()
    names = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    certificates = next((variables[name] for name in names if variables.get(name)), None)
    remote = tuple(address for address in indexes if _is_remote(address))
    return index.Upstream(remote, certificates, variables.get("PIP_PROXY"))


def index_variables(
    variables: Mapping[str, str], source: index.Upstream, addresses: Sequence[str]
) -> dict[str, str]:
    """Return pip's environment *variables* with local *addresses* for the indexes of *source*."""
    here = dict(zip(source.indexes, addresses, strict=True))
    first = variables.get("PIP_INDEX_URL", index.PYPI)
    changed = {**variables, "PIP_INDEX_URL": here.get(first, first)}
    if extra := variables.get("PIP_EXTRA_INDEX_URL", "").split():
        changed["PIP_EXTRA_INDEX_URL"] = " ".join(
            here.get(variable, variable) for variable in extra
        )
    if here:
        # pip trusts no other machine without TLS, and in the root that is what this one is.
        hosts = (variables.get("PIP_TRUSTED_HOST"), network.MACHINE)
        changed["PIP_TRUSTED_HOST"] = " ".join(filter(None, hosts))
        changed.pop("PIP_PROXY", None)
        for name in [name for name in ("http_proxy", "HTTP_PROXY") if name in variables]:
            excepted = name.replace("http", "no").replace("HTTP", "NO")
            changed[excepted] = ",".join(
                filter(None, (variables.get(excepted), "127.0.0.1", network.MACHINE))
            )
    return changed


def cache() -> Path:
    """Return the folder with downloads of former runs, unless the command line names another."""
    return Path(os.environ.get(_CACHE_VARIABLE) or _CACHE)


def _say(text: str) -> None:
    print(f"tools/bare: {text}", file=sys.stderr, flush=True)


def _fail(text: str) -> int:
    _say(text)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/bare",
        usage="%(prog)s [--debian {12,13}] [--cache FOLDER | --cold] [--parent FOLDER] COMMAND...",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--debian",
        type=int,
        choices=sorted(base.CODENAMES),
        default=min(base.CODENAMES),
        help="Debian release of the root; default: %(default)s",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        default=cache(),
        help="folder with downloads of former runs; default: %(default)s",
    )
    parser.add_argument(
        "--cold", action="store_true", help="use no downloads of former runs, and keep none"
    )
    parser.add_argument(
        "--parent",
        type=Path,
        default=Path("/var/tmp"),
        help="folder in which the root is made; default: %(default)s",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser
