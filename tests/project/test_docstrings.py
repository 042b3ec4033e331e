"""Public docstrings say what a user has to know: arguments, shapes, errors, source."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from public_api import MODULES

from ssl_toolkit import errors

ROOT = Path(__file__).parents[2]
FILES = sorted([*(ROOT / "ssl_toolkit").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")])
TENSORS = ("interfaces", "ops.py", "augment", "models", "plugins")
"""Parts whose functions take tensors that somebody else made."""
SHAPE = re.compile(
    r"\((?:\d+|[A-Za-z_][\w ·+/]*|\.\.\.),[^()]*\)|0-dim|[Ss]ame shape|a scalar|[Aa]s `"
)
"""``(N, C)``, ``(...,)``, ``0-dim``, or where it stands: ``as `Context.model```."""
ELEMENTARY = {
    "at_least_float32",
    "soft_cross_entropy",
    "interleave_rows",
    "linear_rampup",
    "rampup",
}
"""Functions of `ops` that are no formula of a paper's own."""
PAPERS = r"MixMatch|FixMatch|SimPLE|Saerens|Laine"


@dataclass(frozen=True)
class Documented:
    """A public function or method in the source."""

    path: Path
    node: ast.FunctionDef
    around: str
    """Docstrings of its class and module."""

    @property
    def where(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.node.lineno} {self.node.name}"

    @property
    def own(self) -> str:
        text = ast.get_docstring(self.node) or ""
        return text + self.around if self.node.name == "__init__" else text

    def decorated_by(self, name: str) -> bool:
        return any(name in ast.unparse(d) for d in self.node.decorator_list)


def functions() -> Iterator[Documented]:
    """Every function and method of a public name, ``__init__`` too."""
    for path in FILES:
        module = ast.parse(path.read_text("utf-8"))
        text = ast.get_docstring(module) or ""
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
                yield Documented(path, node, text)
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                inside = f"{ast.get_docstring(node) or ''}\n{text}"
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and (
                        one.name[0] != "_" or one.name == "__init__"
                    ):
                        yield Documented(path, one, inside)


FUNCTIONS = list(functions())


def raised(function: ast.FunctionDef) -> set[str]:
    """Errors that it raises itself, those that it catches itself left out."""
    return {
        node.exc.func.id
        for node in outside_try(function.body)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
        and node.exc.func.id.endswith("Error")
        and node.exc.func.id[0] != "_"
    }


def outside_try(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes below, but for what a ``try`` with handlers guards."""
    for node in body:
        yield node
        guarded = node.body if isinstance(node, ast.Try) and node.handlers else []
        yield from outside_try(n for n in ast.iter_child_nodes(node) if n not in guarded)


def names_of(error: str) -> set[str]:
    """What a docstring may call an error: by its name, or one of ours that it is."""
    kinds = getattr(errors, error).__mro__ if hasattr(errors, error) else ()
    return {error, *(kind.__name__ for kind in kinds if kind.__module__ == errors.__name__)}


def test_some_functions_are_checked() -> None:
    assert len(FUNCTIONS) > 500
    assert {"pair_loss", "sharpen", "train"} <= {one.node.name for one in FUNCTIONS}


def test_documented_errors_are_those_that_are_raised() -> None:
    wrong = []
    for one in FUNCTIONS:
        # A command's docstring is its help; a rule's is what it demands.
        if one.decorated_by("toolkit_command") or one.path.stem.endswith("_rules"):
            continue
        wrong += [
            f"{one.where}: {error}"
            for error in raised(one.node)
            if "As `" not in one.own and not any(name in one.own for name in names_of(error))
        ]
    assert wrong == []


def test_tensors_have_shapes() -> None:
    wrong = []
    for one in FUNCTIONS:
        if (
            not one.path.relative_to(ROOT)
            .as_posix()
            .startswith(tuple(f"ssl_toolkit/{part}" for part in TENSORS) + TENSORS)
        ):
            continue
        arguments = [*one.node.args.args, *one.node.args.kwonlyargs]
        annotations = [a.annotation for a in arguments if a.annotation is not None]
        takes = any(re.search(r"(?<!\[str, )\bTensor\b", ast.unparse(n)) for n in annotations)
        if takes and not SHAPE.search(f"{one.own}\n{one.around}"):
            wrong.append(one.where)
    assert wrong == []


# --- the public surface -------------------------------------------------------------------------


def public() -> Iterator[tuple[str, Callable[..., object], str]]:
    """Name, function and text around it, of all that is exported."""
    for module in map(import_module, MODULES):
        for name in sorted(set(module.__all__) - {"__version__"}):
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield name, value, ""
            elif inspect.isclass(value):
                text = inspect.getdoc(value) or ""
                for member, result in vars(value).items():
                    function = getattr(result, "__func__", result)
                    if inspect.isfunction(function) and (
                        member[0] != "_"
                        or (member == "__init__" and "__dataclass_fields__" not in vars(value))
                    ):
                        yield f"{name}.{member}", function, text


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_checked(module: str) -> None:
    exported = set(import_module(module).__all__)
    assert exported & {name.partition(".")[0] for name, _, _ in public()}


def test_arguments_of_public_functions_are_explained() -> None:
    wrong = []
    for name, function, around in public():
        text = f"{inspect.getdoc(function) or ''}\n{around}"
        if "arguments as for `" in text.lower():
            continue
        parameters = list(inspect.signature(function).parameters)
        message = [p for p in parameters if re.search(rf"\b{re.escape(p)}\b", text)]
        missing = [p for p in parameters if p not in message and p not in ("self", "cls")]
        if missing:
            wrong.append(f"{name}: {', '.join(missing)}")
    assert wrong == []


def test_formulas_name_their_source() -> None:
    ops = import_module("ssl_toolkit.ops")
    unsourced = {
        name
        for name in ops.__all__
        if not re.search(PAPERS, inspect.getdoc(getattr(ops, name)) or "")
    }
    assert unsourced == ELEMENTARY - {"interleave_rows"}


@pytest.mark.parametrize("folder", ["simple", "mixmatch", "fixmatch"])
def test_an_algorithm_names_its_paper(folder: str) -> None:
    package = ROOT / "plugins" / folder / f"ssl_toolkit_{folder}"
    for path in sorted(package.glob("*.py")):
        if path.name != "__init__.py":
            text = path.read_text("utf-8")
            assert re.search(r"arXiv:\d{4}\.\d{5}", text), path.name
            assert re.search(r"\beq(s|uation)?\b|\balgorithm \d|\bsec(tion)?\b", text), path.name
