# SPDX-License-Identifier: Apache-2.0
"""Which part may import which, how long a module is, and what none is called."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import subprocess
import sys
import tomllib
import unittest
from collections.abc import Iterable, Iterator, Sequence

import nova_gpu
from nova_gpu.core import model

PACKAGE = pathlib.Path(nova_gpu.__file__).parent
ROOT = PACKAGE.parent
CLIENT = ROOT / "osc_gpu"
PACKAGES = (PACKAGE, CLIENT)
# All folders that have modules; a script of each may be run by its path.
FOLDERS = (
    *("benchmarks", "devstack", "doc", "lab", "nova_gpu", "osc_gpu"),
    *("tempest-plugin", "tests", "tools"),
)
# Most clouds do without these: nothing else imports them, and `tools.extensions` tries the rest
# without each.
CLIENT_EXTENSIONS = ("osc_gpu.fleet", "osc_gpu.stock")
# Lines of a module, which takes as many as its noun does, and modules of a folder.
LONGEST = 600
MOST = 25
# A module of such a name is missing a noun.
NOT_A_NAME = {"utils", "util", "common", "helper", "helpers", "manager"}

# What a part imports of this project, besides itself. What is not here is refused.
OWN = {
    "core": set(),
    "data": set(),
    "conf": {"core"},
    "host": {"core", "data"},
    "privsep": {"core", "host", "conf"},
    "api": {"core", "conf"},
    "notifications": {"core", "conf"},
    "quota": {"core"},
    "scheduler": {"core", "conf", "notifications", "quota"},
    "virt": {"core", "host", "conf", "privsep", "notifications", "quota"},
    "virt_ext": {"virt"},
    "cmd": {"core", "host", "conf", "virt"},
    # The client, which nothing of nova_gpu imports
    "osc_gpu": {"core", "data"},
}
# An extension has a side in each of some layers, and each side is of that layer.
EXTENSIONS = {"fabric", "licence", "stock"}
# What it must not import of others. core is not here: it has the standard library only.
NOT_OTHERS = {
    "data": {"nova", "oslo_config"},
    "host": {"nova", "oslo_config"},
    "osc_gpu": {"nova", "oslo_config"},
}


def all_modules() -> list[pathlib.Path]:
    """The modules of both packages"""
    return sorted(module for package in PACKAGES for module in package.rglob("*.py"))


def imports(module: pathlib.Path) -> Iterator[str]:
    """The full names a module imports, wherever in it the statement stands."""
    yield from _names(ast.parse(module.read_text(), str(module)))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # "from nova_gpu import host" imports nova_gpu.host.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(path: Sequence[str]) -> str:
    """Return the layer of what lies at a path below the package."""
    return path[1] if path[0] in EXTENSIONS and len(path) > 1 else path[0]


def faults(part: str, name: str) -> str | None:
    """Why a module of ``part`` may not import ``name``; None when it may."""
    top, _, rest = name.partition(".")
    if top == "eventlet":
        return "runs on native threads too: no eventlet"
    if top in ("nova_gpu", "osc_gpu"):
        other = layer(rest.split(".")) if top == "nova_gpu" else top
        return None if other in OWN[part] | {part} else f"{part} may not import {other}"
    if part == "core" and top not in sys.stdlib_module_names:
        return "core has the standard library only"
    if top in NOT_OTHERS.get(part, ()):
        return f"{part} may not import {top}"
    return None


def _extension(path: Sequence[str]) -> str | None:
    """Return the extension whose folder a path below the package begins with."""
    return path[0] if path and path[0] in EXTENSIONS else None


def _away() -> set[str]:
    """Return the extensions whose folders are not there."""
    return {extension for extension in EXTENSIONS if not (PACKAGE / extension).is_dir()}


class TestLayers(unittest.TestCase):
    def test_imports_point_downwards(self):
        modules = all_modules()
        self.assertGreater(len(modules), 20)
        found = []
        for module in modules:
            path = module.relative_to(ROOT)
            part = path.parts[0]
            if part != CLIENT.name:
                part = layer(path.parts[1:-1] or ("core",))
            found += [
                f"{path}: {name}: {fault}"
                for name in imports(module)
                if (fault := faults(part, name)) is not None
            ]
        self.assertEqual([], found)

    def test_every_part_has_a_place(self):
        parts = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
        self.assertEqual((parts - EXTENSIONS) | {CLIENT.name}, OWN.keys())

    def test_what_the_rules_refuse(self):
        for part, name in (
            ("core", "os_traits"),
            ("core", "nova_gpu.host.pci.sysfs"),
            ("host", "nova.exception"),
            ("host", "oslo_config.cfg"),
            ("host", "nova_gpu.virt.inventory.pool"),
            ("scheduler", "nova_gpu.host.pci.discovery"),
            ("api", "nova_gpu.host.pci.discovery"),
            ("virt", "eventlet.semaphore"),
            ("osc_gpu", "nova.objects"),
            ("osc_gpu", "nova_gpu.virt.inventory.pool"),
            ("core", "osc_gpu.rest"),
            ("cmd", "osc_gpu.rest"),
        ):
            with self.subTest(f"{part} imports {name}"):
                self.assertIsNotNone(faults(part, name))


@functools.cache
def _modules() -> dict[str, ast.Module]:
    """All modules by their full names"""
    found = {}
    for path in all_modules():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text(), str(path))
    return found


def _imported(tree: ast.Module, modules: Iterable[str]) -> Iterator[str]:
    """Those of *modules* that one imports, also where only types are checked"""
    yield from (name if name in modules else name.rpartition(".")[0] for name in _names(tree))


class TestCircles(unittest.TestCase):
    def test_no_two_modules_import_each_other(self):
        modules = _modules()
        imported = {name: set(_imported(tree, modules)) for name, tree in modules.items()}
        both = [
            (name, other)
            for name, others in imported.items()
            for other in others
            if name in imported.get(other, ())
        ]
        self.assertEqual([], both)

    def test_no_two_packages_import_each_other(self):
        """Check all pairs but a package and one inside it, which share a noun."""
        modules = _modules()
        pairs = {
            (_package(name), _package(other))
            for name, tree in modules.items()
            for other in _imported(tree, modules)
            if other in modules
        }
        apart = {(a, b) for a, b in pairs if not f"{a}.".startswith(f"{b}.")}
        apart -= {(a, b) for a, b in apart if b.startswith(f"{a}.")}
        self.assertGreater(len(apart), 50)
        self.assertEqual([], sorted((a, b) for a, b in apart if a < b and (b, a) in apart))


def _package(module: str) -> str:
    """Return the full name of the package in which a module lies, or which it is."""
    path = ROOT.joinpath(*module.split("."))
    return module if path.is_dir() else module.rpartition(".")[0]


class TestExtensions(unittest.TestCase):
    def test_only_its_own_modules_import_one(self) -> None:
        """Check that others load an extension by core.extensions alone, and work without it."""
        insides = [f"nova_gpu.{extension}." for extension in EXTENSIONS] + [
            f"{extension}." for extension in CLIENT_EXTENSIONS
        ]
        found = [
            (name, other)
            for name, tree in _modules().items()
            for other in _imported(tree, _modules())
            for inside in insides
            if f"{other}.".startswith(inside) and not f"{name}.".startswith(inside)
        ]
        self.assertEqual([], found)

    def test_nothing_else_imports_the_clients(self) -> None:
        tests = sorted((ROOT / "tests/unit").rglob("*.py"))
        found = [
            (str(module.relative_to(ROOT)), name)
            for module in (*all_modules(), *tests)
            for name in imports(module)
            for extension in CLIENT_EXTENSIONS
            if f"{name}.".startswith(f"{extension}.")
            and extension.replace(".", "/") not in str(module.parent)
        ]
        self.assertEqual([], found)


# Where it is asked in which way a device is given, or whether it is a whole card or a part of one:
# by the ways themselves, and by what has a name for each.
ASKING = ("nova_gpu.virt.delivery.", "nova_gpu.core.model", "nova_gpu.core.device")
# What asks all the same. Nothing is to be added here: what varies by the way is the way's to say.
ASKING_STILL = {
    "nova_gpu.core.names": "the names of providers have the mode in them",
    "nova_gpu.host.nodes": "a card and a MIG instance have other nodes",
    "nova_gpu.host.container.guest_processes": "and so other processes have them open",
    "nova_gpu.host.nvidia.nvml": "the other end of an NVLink, which no guest has",
}
_MODES = {"DeliveryMode", *model.DeliveryMode.__members__}
_KINDS = {"Slot", "PciAddress"}


def _last(node: ast.AST) -> str | None:
    """``Slot`` of ``Slot`` and of ``vgpu.Slot``"""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def asks(tree: ast.AST) -> list[int]:
    """The lines that ask for a way of delivery or for the kind of a device"""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _last(node.value) == "DeliveryMode":
            lines += [node.lineno] if node.attr in _MODES else []
        elif isinstance(node, ast.Call) and _last(node.func) == "isinstance":
            wanted = {_last(each) for each in ast.walk(node.args[1])}
            lines += [node.lineno] if wanted & _KINDS else []
    return lines


class TestWaysOfDelivery(unittest.TestCase):
    def test_are_asked_for_in_delivery(self):
        found = {
            name: lines
            for name, tree in _modules().items()
            if not name.startswith(ASKING) and (lines := asks(tree))
        }
        self.assertEqual(ASKING_STILL.keys(), found.keys(), found)

    def test_what_asks(self):
        for text in (
            "mode is DeliveryMode.PCI",
            "{model.DeliveryMode.LXC: 1}",
            "isinstance(each, Slot)",
            "isinstance(each, (int, model.PciAddress))",
            "isinstance(each, vgpu.Slot | str)",
        ):
            with self.subTest(text):
                self.assertEqual([1], asks(ast.parse(text)))
        for text in ("DeliveryMode.of_whole_cards(x)", "isinstance(each, GPU)", "mode == other"):
            with self.subTest(text):
                self.assertEqual([], asks(ast.parse(text)))

    def test_no_way_knows_who_uses_it(self):
        """What is common knows the interface, and a way knows nothing of what is common."""
        above = {
            f"nova_gpu.virt.{each}" for each in ("inventory", "lifecycle", "verify", "host_gpus")
        }
        modules = _modules()
        for name, tree in modules.items():
            if name.startswith("nova_gpu.virt.delivery."):
                for other in _imported(tree, modules):
                    with self.subTest(name, other=other):
                        self.assertFalse(other.startswith(tuple(above)))


class TestCollaborators(unittest.TestCase):
    def test_nobody_is_handed_all_of_the_host(self):
        """Only the driver has it: what anybody else uses of it is what he is handed."""
        modules = _modules()
        name = "nova_gpu.virt.host_gpus"
        users = [each for each, tree in modules.items() if name in _imported(tree, modules)]
        self.assertEqual(["nova_gpu.virt.driver"], users)


# What imports modules by their names: a command's, Nova's in parts, a guest's where its folder is,
# and those that take their time.
LATE = [
    "nova_gpu.cmd.gpu",
    "nova_gpu.cmd.status",
    "nova_gpu.conf.novas",
    "nova_gpu.core.extensions",
    "nova_gpu.privsep",
    "nova_gpu.virt.delivery.service",
]


def inner_imports(tree: ast.AST) -> set[int]:
    """Return the lines of the imports inside functions."""
    return {
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }


class TestInnerImports(unittest.TestCase):
    def test_there_are_none(self) -> None:
        """Check all modules; what is imported by its name is listed."""
        lines = {name: inner_imports(tree) for name, tree in _modules().items()}
        self.assertEqual({}, {name: numbers for name, numbers in lines.items() if numbers})
        late = [
            name
            for name, tree in _modules().items()
            if any(_last(node) == "import_module" for node in ast.walk(tree))
        ]
        self.assertEqual(LATE, late)

    def test_privsep_is_imported_when_it_is_used(self) -> None:
        text = (
            "import sys, nova_gpu.privsep as p; before = 'oslo_privsep' in sys.modules;"
            "print(before, callable(p.vgpu.make), 'oslo_privsep' in sys.modules);"
            "print(hasattr(p, 'none'))"
        )
        command = [sys.executable, "-W", "ignore", "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        self.assertEqual("False True True\nFalse\n", done.stdout, done.stderr)

    def test_what_is_inside(self) -> None:
        inside = "def f():\n import os\n def g():\n  from os import path"
        self.assertEqual({2, 4}, inner_imports(ast.parse(inside)))
        self.assertEqual(set(), inner_imports(ast.parse("if True:\n import os")))


# Any exception is caught at these boundaries alone, with the reason in the same line. Elsewhere a
# call that may raise anything stands in nova_gpu.core.boundary.crossed.
BOUNDARIES = {
    "nova_gpu.cmd.status": ["main"],
    "nova_gpu.core.boundary": ["crossed"],
    "nova_gpu.virt.lifecycle.vgpus": ["start"],
    "nova_gpu.virt.live_migration.departures": ["leaving"],
    "nova_gpu.virt.periodic": ["contained"],
}
MOST_BOUNDARIES = 8
ANY = {"Exception", "BaseException"}


def catches_any(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the functions that catch any Exception, and the line.

    One that catches BaseException to undo something and raises it again is none.
    """
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler):
                    types = {_last(each) for each in ast.walk(node.type)} if node.type else ANY
                    swallows = not any(isinstance(each, ast.Raise) for each in ast.walk(node))
                    if types & (ANY if swallows else {"Exception"}):
                        yield function.name, node.lineno


class TestBoundaries(unittest.TestCase):
    def test_any_exception_is_caught_at_few(self) -> None:
        found = {name: list(catches_any(tree)) for name, tree in _modules().items()}
        functions = {name: [each for each, _ in them] for name, them in found.items() if them}
        self.assertEqual(BOUNDARIES, functions)
        self.assertLessEqual(sum(map(len, functions.values())), MOST_BOUNDARIES)
        for name, them in found.items():
            for _, line in them:
                source = ROOT.joinpath(*name.split(".")).with_suffix(".py").read_text()
                with self.subTest(name, line=line):
                    self.assertRegex(source.splitlines()[line - 1], r":  # \w.{15,}")

    def test_what_catches_any(self) -> None:
        for text in (
            "except Exception: raise",
            "except (OSError, Exception): pass",
            "except: pass",
            "except BaseException: pass",
        ):
            with self.subTest(text):
                tree = ast.parse(f"def f():\n try: g()\n {text}")
                self.assertEqual([("f", 3)], list(catches_any(tree)))
        for text in ("except (OSError, ValueError): pass", "except BaseException: raise"):
            with self.subTest(text):
                tree = ast.parse(f"def f():\n try: g()\n {text}")
                self.assertEqual([], list(catches_any(tree)))


class TestNamespaces(unittest.TestCase):
    # setns(2), nsenter(1); the calls that take something from within a process: pidfd_getfd(2),
    # ptrace(2), process_vm_readv(2), and /proc/PID/root and cwd, which lead into its mounts.
    WAYS_IN = re.compile(r"setns|nsenter|umount|pidfd_getfd|ptrace|process_vm_|[}/]/(root|cwd)\b")

    def test_nothing_enters_a_guests_namespaces(self) -> None:
        found = [
            f"{module.relative_to(ROOT)}: {line.strip()}"
            for module in all_modules()
            for line in module.read_text().splitlines()
            if self.WAYS_IN.search(line)
        ]
        self.assertEqual([], found)

    def test_what_would_enter_them(self) -> None:
        for line in ("libc.setns(fd, 0)", "['nsenter', '-t']", 'open(f"/proc/{pid}/root/dev")'):
            self.assertTrue(self.WAYS_IN.search(line), line)


class TestModules(unittest.TestCase):
    def test_length(self):
        lengths = {
            str(module.relative_to(ROOT)): len(module.read_text().splitlines())
            for module in all_modules()
        }
        self.assertEqual({}, {name: n for name, n in lengths.items() if n > LONGEST})

    def test_names(self):
        names = {module.stem for package in PACKAGES for module in package.rglob("*")}
        self.assertEqual(set(), names & NOT_A_NAME)

    def test_none_hides_one_of_the_standard_library(self):
        """Check module names: a script run by its path has its folder first in ``sys.path``."""
        modules = [module for name in FOLDERS for module in (ROOT / name).rglob("*.py")]
        self.assertGreater(len(modules), 500)
        hiding = [
            str(module.relative_to(ROOT))
            for module in modules
            if module.stem in sys.stdlib_module_names
        ]
        self.assertEqual([], hiding)


class TestPackages(unittest.TestCase):
    """Packages below core, host and virt: a newcomer guesses from their names where a rule is."""

    def setUp(self):
        inits = [*PACKAGE.glob("*/*/__init__.py"), *CLIENT.glob("*/**/__init__.py")]
        self.packages = sorted(path.parent for path in inits)
        self.assertGreater(len(self.packages), 15)

    def test_modules_of_a_folder(self):
        folders = {module.parent for module in all_modules()}
        counts = {
            str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) - 1 for folder in folders
        }
        self.assertEqual({}, {name: n for name, n in counts.items() if n > MOST})

    def test_each_says_what_belongs_there(self):
        for package in (*self.packages, *(PACKAGE / name for name in ("core", "host", "virt"))):
            with self.subTest(package=package.name):
                tree = ast.parse((package / "__init__.py").read_text())
                self.assertRegex(ast.get_docstring(tree) or "", r"^\w.{30,}")
                self.assertEqual(1, len(tree.body), "a paragraph, no code")

    def test_are_installed(self):
        metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
        listed = set(metadata["tool"]["setuptools"]["packages"])
        inits = (path for path in all_modules() if path.name == "__init__.py")
        folders = {path.parent for path in inits} - {PACKAGE / "virt_ext"}
        names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
        # A packager may leave an extension out.
        away = {each for each in listed if _extension(each.split(".")[1:]) in _away()}
        self.assertEqual(names | {"nova.virt.gpu"}, listed - away)

    def test_are_in_the_architecture(self):
        page = (ROOT / "doc/source/contributor/architecture.rst").read_text()
        names = {str(folder.relative_to(ROOT)) for folder in self.packages}
        names = {name.removeprefix("nova_gpu/") for name in names}
        self.assertEqual(set(), {name for name in names if f"``{name}``" not in page})

    def test_tests_lie_beside(self):
        tests = ROOT / "tests/unit"
        layers = ("core", "host", "virt", "osc_gpu", *EXTENSIONS)
        found = [path for layer in layers for path in (tests / layer).rglob("test_*.py")]
        self.assertGreater(len(found), 90)
        for path in found:
            folder = path.relative_to(tests).parent
            folder = ROOT / folder if folder.parts[0] == CLIENT.name else PACKAGE / folder
            modules = [module.stem for module in folder.glob("*.py")]
            with self.subTest(str(path.relative_to(tests))):
                name = path.stem.removeprefix("test_")
                self.assertTrue(any(name.startswith(module) for module in modules))

    def test_each_module_of_virt_has_one(self):
        tests = ROOT / "tests/unit/virt"
        modules = (path.relative_to(PACKAGE / "virt") for path in PACKAGE.glob("virt/**/*.py"))
        missing = [
            str(module)
            for module in modules
            if module.stem != "__init__"
            and not (tests / module.parent / f"test_{module.name}").is_file()
        ]
        self.assertEqual([], missing)

    def test_modules_that_the_page_names(self):
        pages = ROOT / "doc/source/contributor"
        page = "".join((pages / name).read_text() for name in ("where.rst", "state.rst"))
        named = re.findall(
            r"``((?:api|cmd|conf|core|fabric|host|licence|osc_gpu|privsep|scheduler|stock|virt)(?:/\w+)*)``",
            page,
        )
        self.assertGreater(len(named), 25)
        left_out = tuple(
            folder
            for folder in (extension.replace(".", "/") for extension in CLIENT_EXTENSIONS)
            if not (ROOT / folder).is_dir()
        )
        gone = [
            name
            for name in named
            if not name.startswith(left_out)
            if not any(
                (top / name).is_dir() or (top / f"{name}.py").is_file() for top in (PACKAGE, ROOT)
            )
        ]
        self.assertEqual([], [name for name in gone if _extension(name.split("/")) not in _away()])
