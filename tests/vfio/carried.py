# SPDX-License-Identifier: Apache-2.0
"""Programs for a guest: ``lspci`` and ``nova-gpu topology`` as an image's user would have them.

They are this machine's, with what they load and nothing else, as an archive that the kernel unpacks
beside the guest's initramfs. ``python -m tests.vfio.carried FOLDER ARGUMENT ...`` runs ``nova-gpu``
without libvirt, and writes to the folder what Python has loaded for it.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterable
from importlib import abc, machinery

# What a guest needs to have them unpacked: a half is for files at most.
GUEST_MIB = 192
# On this machine
NEEDED = ("binutils", "cpio", "pciutils")
_HERE = pathlib.Path(__file__)
_ROOT = _HERE.parents[2]
# Python finds its modules from where it is itself.
_PYTHON = pathlib.Path("usr/bin/python3")
_MODULES = pathlib.Path(f"usr/lib/python3.{sys.version_info.minor}")
# The guest's first program, in its place
FIRST = "look"
_COMMAND = "import sys; from nova_gpu.cmd import gpu; sys.exit(gpu.main())"
# A guest has no driver of NVIDIA's; the cards of a pretended host have.
_OPTIONS = "[gpu]\nsysfs_root = {root}/sys\nproc_root = {root}/proc\nnvml = false\n"


def archive(target: pathlib.Path) -> None:
    """Makes the file *target*."""
    with tempfile.TemporaryDirectory() as name:
        tree = pathlib.Path(name, "tree")
        (tree / _MODULES / "lib-dynload").mkdir(parents=True)
        # It has this module in itself, but knows the folder by it.
        (tree / _MODULES / "os.py").touch()
        _load(tree / _MODULES, pathlib.Path(name))
        _copy_program(pathlib.Path(sys.executable).resolve(), tree / _PYTHON, tree)
        _copy_program(pathlib.Path(shutil.which("lspci") or "/usr/bin/lspci"), None, tree)
        for module in tree.rglob("*.so"):
            _copy_libraries(module, tree)
        # Their symbols for debuggers are the greater part of them.
        compiled = [each for each in tree.rglob("*") if each.is_file() and _is_compiled(each)]
        subprocess.run(["strip", "--strip-unneeded", *compiled], check=True)
        command = tree / "usr/bin/nova-gpu"
        command.write_text(f"#!/{_PYTHON}\n{_COMMAND}\n")
        command.chmod(0o755)
        shutil.copy2(_HERE.with_name("look.sh"), tree / FIRST)
        names = sorted(str(each.relative_to(tree)) for each in tree.rglob("*"))
        with target.open("wb") as file:
            argv = ["cpio", "--create", "--format=newc", "--quiet", "--owner=0:0"]
            text = "\n".join(names).encode()
            subprocess.run(argv, input=text, stdout=file, cwd=tree, check=True)


def _load(folder: pathlib.Path, work: pathlib.Path) -> None:
    """Has another process write to *folder* what is loaded for two cards."""
    from tests.fixtures import hosts

    host = hosts.Host(work / "host", iommu=False)
    for root in ("20", "40"):
        host.add_gpu_at(f"pci0000:{root}/0000:{root}:00.0/0000:{root}:01.0", 0, "10de", "2321")
    options = work / "nova.conf"
    options.write_text(_OPTIONS.format(root=host.root))
    argv = [sys.executable, "-m", __name__, str(folder), "--config-file", str(options), "topology"]
    subprocess.run(argv, cwd=_ROOT, stdout=subprocess.DEVNULL, check=True)


def _copy_program(program: pathlib.Path, target: pathlib.Path | None, tree: pathlib.Path) -> None:
    target = target or tree / program.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, target)
    _copy_libraries(program, tree)


def _copy_libraries(program: pathlib.Path, tree: pathlib.Path) -> None:
    said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"(/\S+) \(0x", said):
        # Where the loader looks without being told.
        target = tree / ("lib64" if "ld-linux" in path else "lib") / pathlib.Path(path).name
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(path, target)


def _is_compiled(file: pathlib.Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"


def _write(folder: pathlib.Path, modules: Iterable[str], opened: Iterable[str]) -> None:
    """Those of *modules* that are files, compiled, and of the files that were *opened* what belongs
    to a package and is no module."""
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.has_location or not spec.origin:
            continue
        path = folder / name.replace(".", "/")
        if spec.submodule_search_locations is not None:
            path /= "__init__"
        path.parent.mkdir(parents=True, exist_ok=True)
        if (origin := pathlib.Path(spec.origin)).suffix == ".so":
            shutil.copy2(origin, path.with_name(f"{path.name}.so"))
        else:
            code = importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(_code(spec))
            path.with_name(f"{path.name}.pyc").write_bytes(code)
    roots = [pathlib.Path(each) for each in sorted(sys.path, key=len, reverse=True)]
    for file in map(pathlib.Path, opened):
        root = next(filter(file.is_relative_to, roots), None)
        if root and file.suffix not in (".py", ".pyc") and file.is_file():
            target = folder / file.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)


def _code(spec: machinery.ModuleSpec) -> types.CodeType:
    assert isinstance(spec.loader, abc.InspectLoader)
    code = spec.loader.get_code(spec.name)
    assert code is not None, spec
    return code


def main() -> int:
    opened: list[str] = []
    begun: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            opened.append(os.fspath(arguments[0]))
        elif event == "import" and str(arguments[0]).startswith("nova_gpu."):
            # The import of some ends where libvirt is missing.
            begun.append(str(arguments[0]))

    sys.addaudithook(note)
    sys.modules["libvirt"] = None  # type: ignore[assignment]
    from nova_gpu.cmd import gpu

    status = gpu.main(["nova-gpu", *sys.argv[2:]])
    named = [name for name, each in sys.modules.items() if getattr(each, "__spec__", None)]
    _write(pathlib.Path(sys.argv[1]), {*named, *begun} - {"__main__"}, tuple(opened))
    return status


if __name__ == "__main__":
    sys.exit(main())
