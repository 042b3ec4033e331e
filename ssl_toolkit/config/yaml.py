"""YAML without surprises: nothing runs, nothing is guessed, nothing is overwritten.

Every plain scalar but null stays the text that was written, and the type of its field decides
what it becomes. So ``1e-3`` is a number for a learning rate and ``no`` or ``001`` a name for a
class; PyYAML alone reads them as text, False and 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import at_home, check_format, write_text
from ssl_toolkit.registry import did_you_mean

FORMAT = 1
"""The number of the layout of configuration files, optional in those that people write."""


class _TextLoader(yaml.SafeLoader):
    """Reads text, null, lists and maps; refuses duplicate keys, aliases and every other type."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - declared by yaml as an instance variable
        first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    yaml_constructors = {  # noqa: RUF012 - as above
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "str", "seq", "map")
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            # A few of them make a tree that contains itself, or one without end.
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise ConfigError(
                f"line {event.start_mark.line + 1}: *{event.anchor} repeats another value; "
                "write it out"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise ConfigError(f"line {line}: a key must be text, not {key!r}")
            if key in lines:
                raise ConfigError(
                    f"line {line}: duplicate key {key!r} (first in line {lines[key]}); keep one"
                )
            lines[key] = line
        return super().construct_mapping(node, deep)


def parse(text: str, origin: object = "text") -> Any:
    """Parse one YAML document.

    Args:
        text: the document.
        origin: start of the message of an error: the file or flag.

    Raises:
        ConfigError: it is not YAML, a key is duplicated, or it asks for a Python object.
    """
    try:
        return yaml.load(text, Loader=_TextLoader)
    except ConfigError as error:  # of the loader
        raise ConfigError(f"{origin}: {error}") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{origin}: not valid YAML: {reason}") from error
    except RecursionError as error:
        raise ConfigError(f"{origin}: not valid YAML: nested too deep") from error


def configs_dir() -> Path:
    """Return the folder ``configs/``, in an installed wheel or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def find_config(name: str) -> Path:
    """Return a configuration file by path, or by its name below `configs_dir`.

    Raises:
        ConfigError: it is neither; the message suggests near names of packaged files.
    """
    path = at_home(name)
    packaged = configs_dir() / name
    if path.exists():
        return path
    if packaged.is_file():
        return packaged
    known = [str(one.relative_to(configs_dir())) for one in configs_dir().rglob("*.yaml")]
    raise ConfigError(
        f"{path}: no such file, nor one that comes with ssl-toolkit{did_you_mean(name, known)}"
    )


def read(path: Path) -> dict[str, Any]:
    """Read a configuration file: a map of keys at its top level (an empty file is an empty map).

    Raises:
        ConfigError: names the file and what is wrong with it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason})") from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    tree = parse(text, path)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a configuration is a map of keys, not a {type(tree).__name__}")
    check_format(path, tree.pop("format", FORMAT), FORMAT, ConfigError)
    return tree


def read_dumped(path: Path) -> dict[str, Any]:
    """Read a file that `dump` wrote, with the plain types that it was given.

    Raises:
        ConfigError: as `read`.
    """
    read(path)
    tree: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    tree.pop("format", None)
    return tree


class _TextDumper(yaml.SafeDumper):
    """Escapes in texts what YAML would take for the end of a line."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_TextDumper.add_representer(str, _text)


def dump(tree: dict[str, Any]) -> str:
    """Write a tree of plain types so that `parse` and the fields' types give it back."""
    return yaml.dump(tree, Dumper=_TextDumper, sort_keys=False, allow_unicode=True)


def write(path: Path, tree: dict[str, Any]) -> None:
    """Write a configuration file with its format number, whole or not at all.

    Args:
        path: the file.
        tree: plain types.
    """
    write_text(path, dump({"format": FORMAT, **tree}))
