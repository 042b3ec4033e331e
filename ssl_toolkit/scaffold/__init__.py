"""Fill the templates of a small project for a plugin."""

from __future__ import annotations

import datetime
import importlib.util
import keyword
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ssl_toolkit
from ssl_toolkit import registry
from ssl_toolkit.api import API_VERSION
from ssl_toolkit.config.plugin_names import class_of
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.errors import ConfigError, PluginError

LICENSES = ("MIT", "Apache-2.0", "BSD-3-Clause")

_HERE = Path(__file__).parent
_LONGEST = 32
"""Characters of a name, so that lines of the templates stay below 100."""
_IMPORTED = {"Any", "Callable", "F", "Image", "Iterator", "Mapping", "NDArray", "Path", "Sequence"}
"""Names that templates import, beside the public ones of ssl_toolkit."""


@dataclass(frozen=True)
class Kind:
    """Texts of the templates for one kind of plugin."""

    words: str
    about: str
    use: tuple[str, ...]
    """Commands; ``NAME`` stands for the plugin's name."""
    configured: bool = True
    """True if it has options."""


KINDS = {
    "addon": Kind(
        "add-on to algorithms",
        "As generated, it leaves out pseudo labels whose class is predicted too often.",
        (
            "ssl-toolkit run --algo fixmatch+NAME",
            "ssl-toolkit run --algo fixmatch+NAME --set fixmatch.NAME.limit=1.5",
            "ssl-toolkit compare --algos fixmatch,fixmatch+NAME,simple+NAME",
        ),
    ),
    "algorithm": Kind(
        "semi-supervised algorithm",
        "As generated, it is pseudo-labeling (Lee, 2013): confident predictions of an averaged "
        "teacher become labels.",
        (
            "ssl-toolkit run --algo NAME",
            "ssl-toolkit run --algo NAME --set NAME.threshold=0.9",
            "ssl-toolkit compare --algos NAME,fixmatch,supervised",
        ),
    ),
    "augmenter": Kind(
        "augmenter",
        "As generated, it changes contrast and brightness, and mirrors images.",
        (
            "ssl-toolkit run --algo fixmatch --set augment.strong=NAME",
            "ssl-toolkit run --set augment.strong=NAME --set augment.strong_options.strength=0.3",
        ),
    ),
    "backbone": Kind(
        "backbone",
        "As generated, it is a small convolutional network.",
        (
            "ssl-toolkit run --backbone NAME",
            "ssl-toolkit compare --algos simple,fixmatch --backbone NAME",
        ),
        configured=False,
    ),
    "dataset": Kind(
        "data set",
        "As generated, it draws colored shapes.",
        (
            "ssl-toolkit run --dataset NAME",
            "ssl-toolkit compare --algos simple,fixmatch --dataset NAME --labels-per-class 2",
        ),
        configured=False,
    ),
    "launcher": Kind(
        "launcher",
        "As generated, it runs the jobs of a comparison one after another.",
        (
            "ssl-toolkit compare --algos simple,fixmatch --launcher NAME",
            "ssl-toolkit compare --algos simple,fixmatch --launcher NAME "
            "--set \"launcher_options.before=[nice, -n, '10']\"",
        ),
    ),
    "logger": Kind(
        "logger",
        "As generated, it writes the metrics as a long table in CSV.",
        (
            "ssl-toolkit run --loggers NAME",
            "ssl-toolkit compare --algos simple,fixmatch --loggers NAME",
        ),
        configured=False,
    ),
}
"""By name, as the command takes it."""


def create(kind: str, name: str, parent: Path, *, license: str | None, author: str | None) -> Path:
    """Write a project, whole or not at all.

    Args:
        kind: a key of `KINDS`.
        name: of the plugin, of its module and of the project's folder.
        parent: where the folder is made; made itself when missing.
        license: one of `LICENSES`; None for none.
        author: who holds the copyright; None for "the authors of NAME".

    Returns:
        The project's folder.

    Raises:
        PluginError: the name can't be one of a plugin, or is taken.
        ConfigError: the folder exists, or can't be made.
    """
    _check_name(kind, name)
    folder = parent / name
    if os.path.lexists(folder):
        raise ConfigError(f"{folder}: exists already; choose another name, or --path")
    beside = parent / f".{name}.{os.getpid()}.partial"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        try:
            for path, text in _files(kind, name, license, author).items():
                target = beside / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text, encoding="utf-8", newline="\n")
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"{folder}: can't be made: {error.strerror or error}") from error
    return folder


def class_name(kind: str, name: str) -> str:
    """The name of the class of a plugin: ``MyMethod`` for ``my_method``."""
    camel = "".join(part.capitalize() for part in name.split("_"))
    taken = camel in {*ssl_toolkit.__all__, *_IMPORTED} or keyword.iskeyword(camel)
    return camel + class_of(f"{kind}s") if taken else camel


def _check_name(kind: str, name: str) -> None:
    group = f"{kind}s"
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise PluginError(
            f"name {name!r}: use lower-case letters and digits, words joined by one underscore"
        )
    reason = ""
    if len(name) > _LONGEST:
        reason = f"is longer than {_LONGEST} characters"
    elif keyword.iskeyword(name) or keyword.issoftkeyword(name):
        reason = "is a word of Python's"
    elif registry.has(group, name):
        owner = registry.find(group, name)
        reason = "is built in" if owner.built_in else f"is a name of {owner.distribution}"
    elif kind == "algorithm" and name in {*Settings.model_fields, "algorithm"}:
        reason = "is a key of the configuration, where the options of an algorithm have its name"
    elif name in ("tests", "conftest") or importlib.util.find_spec(name) is not None:
        # Of the standard library too: `import NAME` would find one of the two.
        reason = "is a module that exists"
    if reason:
        raise PluginError(f"{kind} {name!r} {reason}; choose another name")


def _files(kind: str, name: str, license: str | None, author: str | None) -> dict[str, str]:
    """The project: path to content."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    facts = _facts(kind, name, license, author)
    templates = {
        f"{name}.py": f"templates/{kind}.py.j2",
        f"tests/test_{name}.py": "templates/test.py.j2",
        "pyproject.toml": "templates/pyproject.toml.j2",
        "README.md": "templates/README.md.j2",
        ".github/workflows/tests.yaml": "templates/ci.yaml.j2",
        ".gitignore": "templates/gitignore.j2",
    }
    if license is not None:
        templates["LICENSE"] = f"licenses/{license}.txt"
    made = {path: environment.get_template(file).render(facts) for path, file in templates.items()}
    return {path: text.rstrip("\n") + "\n" for path, text in made.items()}


def _facts(kind: str, name: str, license: str | None, author: str | None) -> dict[str, Any]:
    about = KINDS[kind]
    major, minor = ssl_toolkit.__version__.split(".")[:2]
    return {
        "kind": kind,
        "kind_words": about.words,
        "article": "An" if about.words[0] in "aeiou" else "A",
        "about": about.about,
        "use": "\n".join(about.use).replace("NAME", name),
        "configured": about.configured,
        "name": name,
        "pad": " " * max(0, 21 - len(name)),
        "class_name": class_name(kind, name),
        "distribution": name.replace("_", "-"),
        "license": license,
        "author": author or f"the authors of {name}",
        "year": datetime.date.today().year,
        "versions": f">={major}.{minor},<{major}.{int(minor) + 1}",
        "api_version": API_VERSION,
    }
