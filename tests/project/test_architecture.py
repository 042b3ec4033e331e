"""The shape of the code: who imports whom, what is public, what every plugin folder holds."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

import ssl_toolkit
from ssl_toolkit import (
    AddOn,
    Algorithm,
    Augmenter,
    Backbone,
    Dataset,
    Launcher,
    Logger,
    registry,
)

ROOT = Path(__file__).parents[2]
CORE = ROOT / "ssl_toolkit"
PLUGINS = sorted(path for path in (ROOT / "plugins").iterdir() if path.is_dir())
RANKS = {
    "errors": 0,
    "api": 0,
    "text": 0,
    "stdio": 0,
    "interrupts": 0,
    "files": 1,
    "markdown": 1,
    "console": 2,
    "locking": 2,
    "documents": 2,
    "processes": 2,
    "config": 2,
    "recipes": 2,
    "registry": 2,
    "torch_workarounds": 2,
    "ops": 3,
    "image_ops": 3,
    "interfaces": 3,
    "scaffold": 3,
    "data": 4,
    "models": 4,
    "augment": 4,
    "loggers": 4,
    "launchers": 4,
    "tabular": 5,
    "engine": 5,
    "runs": 6,
    "inference": 7,
    "comparisons": 7,
    "estimator": 8,
    "reports": 8,
    "testing": 8,
    "multirun": 9,
    "stages": 9,
    "reproduction": 10,
    "suites": 10,
    "labeling": 10,
    "commands": 11,
}
"""A part imports parts of a lower rank, itself, and the parts named in BESIDE."""
DATA_RANKS = {
    "class_names": 0,
    "packed_strings": 0,
    "label_values": 1,
    "images": 1,
    "cache": 2,
    "readers": 3,
    "splits": 4,
    "sets": 5,
    "load": 6,
}
"""A part of `data` imports parts of `data` of a lower rank, and itself."""
BESIDE = {"files", "config", "recipes", "registry"}
LIGHT = (
    *(
        "errors",
        "api",
        "text",
        "stdio",
        "interrupts",
        "files",
        "console",
        "locking",
        "config",
        "recipes",
        "registry",
        "scaffold",
    ),
    "commands",
)
"""Parts that are imported without torch."""


def core_files() -> list[Path]:
    return sorted(CORE.rglob("*.py"))


def plugin_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(CORE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of every import statement; the name is empty for ``import module``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from ((str(node.module), alias.name) for alias in node.names)


def imported_parts(tree: ast.AST) -> Iterator[str]:
    """The parts of the core that a module imports, whether by path or by public name."""
    for module, name in imports(tree):
        package, *inner = module.split(".")
        if package != "ssl_toolkit":
            continue
        if inner:
            yield inner[0]
        elif name in RANKS:
            yield name
        elif name and not name.startswith("__"):
            yield ssl_toolkit._MODULES[name].split(".")[1]


def at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, those under TYPE_CHECKING left out."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for block in ("body", "orelse", "finalbody"):
            waiting += getattr(node, block, [])


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_every_part_has_a_rank() -> None:
    parts = {part_of(path) for path in core_files()} - {"__init__", "__main__"}
    assert parts <= RANKS.keys()
    assert {"errors", "ops", "engine", "commands"} <= parts


def test_imports_go_in_one_direction() -> None:
    wrong = []
    for path in core_files():
        part = part_of(path)
        if part in ("__init__", "__main__"):
            continue
        for target in imported_parts(parse(path)):
            lower = RANKS[target] < RANKS[part]
            if not (lower or target == part or {target, part} <= BESIDE):
                wrong.append(f"{path.relative_to(ROOT)} imports {target}")
    assert wrong == []


def data_imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, part) of what a file of `data` imports from `data`."""
    for module, name in imports(parse(path)):
        if module == "ssl_toolkit.data" or module.startswith("ssl_toolkit.data."):
            whole = f"{module}.{name}"
            inner = module.split(".")[2:]
            yield whole, inner[0] if inner else name


def test_imports_of_data_go_in_one_direction() -> None:
    wrong, graph = [], {}
    for path in (CORE / "data").rglob("*.py"):
        part = path.relative_to(CORE / "data").parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        graph[module] = {whole.rpartition(".")[0] for whole, _ in data_imports(path)}
        for whole, target in data_imports(path):
            if target != part and DATA_RANKS[target] >= DATA_RANKS[part]:
                wrong.append(f"{path.relative_to(ROOT)} imports {whole}")
    assert wrong == []
    assert [*TopologicalSorter(graph).static_order()], "two files import each other"


def test_light_modules_import_nothing_heavy() -> None:
    heavy = ("torch", "torchvision", "timm", "kornia", "numpy", "PIL", "safetensors")
    wrong = []
    for path in core_files():
        if part_of(path) not in LIGHT:
            continue
        for node in at_import(parse(path)):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            modules = [module.split(".")[0] for module, _ in imports(node)]
            parts = [part for part in imported_parts(node) if part not in LIGHT]
            if parts or set(modules) & set(heavy):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def test_the_package_is_lazy() -> None:
    probe = (
        "import sys, ssl_toolkit; before = set(sys.modules); ssl_toolkit.ConfigError;"
        "print('torch' in sys.modules, 'pydantic' in before, "
        "sorted(m for m in before if m.startswith('ssl_toolkit.')))"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=True)
    assert result.stdout.split() == [b"False", b"False", b"[]"]


# --- the public surface -------------------------------------------------------------------------


def test_type_checkers_and_python_see_the_same_names() -> None:
    seen = {name: module for module, name in imports(parse(CORE / "__init__.pyi"))}
    assert seen == ssl_toolkit._MODULES
    assert sorted(ssl_toolkit.__all__) == sorted({*seen, "__version__"})


@pytest.mark.parametrize("name", sorted(set(ssl_toolkit.__all__) - {"__version__"}))
def test_a_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(ssl_toolkit, name)
    assert name in dir(ssl_toolkit)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__module__.startswith("ssl_toolkit."), value.__module__
        text = inspect.cleandoc(value.__doc__ or "")
        assert not text.startswith(f"{name}("), "the docstring that dataclass makes"
        assert len(text) > 20


def test_an_unknown_public_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        ssl_toolkit.Trainer  # noqa: B018


def public_functions(module: ModuleType) -> set[str]:
    result = vars(module).items()
    return {n for n, f in result if inspect.isfunction(f) and f.__module__ == module.__name__}


# --- plugins ------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_imports_public_names_only(folder: Path) -> None:
    operations = {
        module: set(importlib.import_module(module).__all__)
        for module in ("ssl_toolkit.ops", "ssl_toolkit.image_ops")
    }
    own = f"ssl_toolkit_{folder.name}"
    wrong = []
    for path in plugin_files(folder):
        for module, name in imports(parse(path)):
            package = module.split(".")[0]
            if not package.startswith("ssl_toolkit") or package == own:
                continue
            public = (module == "ssl_toolkit" and name in {"", *ssl_toolkit.__all__}) or (
                name in operations.get(module, ())
            )
            if not public:
                wrong.append(f"{path.relative_to(ROOT)}: {module} {name}")
    assert wrong == []


def test_the_core_never_imports_a_plugin() -> None:
    for path in core_files():
        modules = {module.split(".")[0] for module, _ in imports(parse(path))}
        assert not {m for m in modules if m.startswith("ssl_toolkit_")}, path
        assert not any(
            f"ssl_toolkit_{folder.name}" in path.read_text("utf-8") for folder in PLUGINS
        ), path


def texts(path: Path) -> Iterator[str]:
    """The string constants of a file that are no docstrings."""
    tree = parse(path)
    docs = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_the_core_names_no_plugin() -> None:
    contract = {"supervised"}  # also the name of a loss
    named = {
        entry.name
        for group in ("algorithms", "backbones", "datasets", "loggers", "launchers")
        for entry in registry.entries(group)
        if entry.built_in and entry.name != "local"
    } - contract
    for path in core_files():
        where = path.relative_to(CORE).as_posix()
        if where == "config/defaults.py" or where.startswith(("scaffold/", "testing/")):
            continue  # the defaults, and examples
        allowed = {"fixmatch"} if where == "augment/randaugment.py" else set()  # its table
        result = {text for text in texts(path) if text in named or text.startswith("wrn_")}
        assert result <= allowed, where


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_folder_is_complete_and_declared(folder: Path) -> None:
    package = folder / f"ssl_toolkit_{folder.name}"
    for file in ("__init__.py", "py.typed"):
        assert (package / file).is_file(), file
    assert [*package.glob("[!_]*.py")], "no module beside __init__.py"
    assert len((folder / "README.md").read_text("utf-8").split()) > 30

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = project["project"]["entry-points"]
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert f"plugins/{folder.name}/{package.name}" in wheel
    assert package.name in project["tool"]["mypy"]["packages"]
    declared = {
        EntryPoint(name, value, group).load()
        for group, points in groups.items()
        for name, value in points.items()
        if value.split(":")[0].split(".")[0] == package.name
    }
    declared = {one for one in declared if isinstance(one, type)}  # not functions for weights
    plugins = {
        kind
        for kind in classes(package.name)
        if getattr(kind, "plugin_kind", None) and not inspect.isabstract(kind)
    }
    assert declared == plugins, "a plugin without an entry point, or the reverse"


def test_declared_entry_points_equal_installed_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    declared = project["project"]["entry-points"]
    assert project["project"]["version"] == ssl_toolkit.__version__
    for group in (*registry.GROUPS, registry.WEIGHTS):
        expected = declared.get(f"ssl_toolkit.{group}", {})
        installed = {e.name: e.value for e in registry.entries(group) if e.built_in}
        assert installed == expected, group
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert (ROOT / package / "py.typed").is_file()


# --- classes ------------------------------------------------------------------------------------


def classes(*packages: str) -> Iterator[type]:
    """Every class of some packages; by default of the core and of our plugins."""
    everything = ["ssl_toolkit", *(f"ssl_toolkit_{folder.name}" for folder in PLUGINS)]
    for package in packages or everything:
        path = importlib.import_module(package).__path__
        for result in pkgutil.walk_packages(path, f"{package}."):
            if result.name.endswith("__main__"):
                continue
            module = importlib.import_module(result.name)
            for value in vars(module).values():
                if inspect.isclass(value) and value.__module__ == module.__name__:
                    yield value


def is_data(kind: type) -> bool:
    """Errors, options and schemas are trees: the parent is caught, or holds what both have."""
    return issubclass(kind, BaseException | BaseModel)


def test_no_concrete_class_inherits_from_another() -> None:
    ours = set(classes())
    assert {AddOn, Algorithm, Augmenter, Backbone, Dataset, Launcher, Logger} <= ours
    wrong = {
        f"{one.__name__} inherits from {parent.__name__}"
        for one in ours
        for parent in one.__mro__[1:]
        if parent in ours - {AddOn} and not inspect.isabstract(parent) and not is_data(parent)
    }
    assert wrong == set()


@pytest.mark.parametrize("group", registry.GROUPS)
def test_every_registered_name_resolves(group: str) -> None:
    for entry in registry.entries(group):
        assert registry.attempt(entry)[1] == "", entry


def test_names_are_plain() -> None:
    for group in registry.GROUPS:
        for entry in registry.entries(group):
            assert entry.name.isidentifier()
            assert entry.name == entry.name.lower()


def test_options_of_plugins_state_default_range_and_meaning() -> None:
    for group in ("algorithms", "augmenters"):
        for entry in registry.entries(group):
            config = registry.load(group, entry.name).Config
            config()
            assert config.for_pretrained.keys() <= config.model_fields.keys(), entry.name
            config(**config.for_pretrained)
            for name, field in config.model_fields.items():
                assert field.description, (entry.name, name)
                if field.annotation in (int, float):
                    assert field.metadata, (entry.name, name, "has no range")


# --- files --------------------------------------------------------------------------------------


def ours() -> list[Path]:
    return [*core_files(), *(file for folder in PLUGINS for file in plugin_files(folder))]


def test_no_file_or_class_has_a_vague_name() -> None:
    names = {part for path in ours() for part in path.relative_to(ROOT).parts}
    assert not {"utils.py", "helpers.py", "common.py", "misc.py"} & names
    classes = [
        node.name for path in ours() for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
    ]  # fmt: skip
    assert [name for name in classes if name.startswith("Base") or name.endswith("Manager")] == []
