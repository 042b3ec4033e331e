"""Options that commands share; those of settings derive from their declarations."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, get_args

import click
from pydantic.fields import FieldInfo

from ssl_toolkit.config.images import parse_size
from ssl_toolkit.config.options import (
    Options,
    declaration_of,
    default_text,
    fields_of,
    sentence,
)
from ssl_toolkit.config.settings import Settings

Decorator = Callable[[Any], Any]

PATH = click.Path(path_type=Path)


def toolkit_command(function: Callable[..., Any]) -> click.Command:
    """Turn a function into a command, with ``--debug`` as its last option."""
    result = click.command(function)
    result.params.append(
        click.Option(
            ["--debug"], is_flag=True, expose_value=False, help="Show tracebacks of errors."
        )
    )
    return result


def options(*decorators: Decorator) -> Decorator:
    """Return a decorator that adds options in their order."""

    def decorate(function: Any) -> Any:
        for add in reversed(decorators):
            function = add(function)
        return function

    return decorate


def configuration_options(*models: type[Options], without: Collection[str] = ()) -> Decorator:
    """Return the options of a command with configuration files: flags, ``--config`` and ``--set``.

    Values of flags stay text, which is validated with the files.

    Args:
        models: Other settings of the command, which precede those of a run and replace those of
            the same name.
        without: Settings that the command doesn't have.
    """
    fields: dict[str, FieldInfo] = {}
    sections: list[type[Options]] = [*models, Settings]
    for model in sections:
        fields |= {k: v for k, v in fields_of(model) if k not in fields}
    for name in without:
        del fields[name]
    return options(
        *[_flag(name, field) for name, field in fields.items() if declaration_of(field).flag],
        click.option(
            "--config",
            "files",
            multiple=True,
            metavar="FILE",
            help="Path or name of a YAML file. Repeatable.",
        ),
        click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any other key. Repeatable."
        ),
    )


def _flag(name: str, field: FieldInfo) -> Decorator:
    declared, flag = declaration_of(field), name.replace("_", "-").replace(".", "-")
    text = sentence(field.description or "", default_text(field))
    if bool in (field.annotation, *get_args(field.annotation)):
        return click.option(f"--{flag}/--no-{flag}", default=None, help=text)
    return click.option(
        f"--{flag}",
        metavar=_placeholder(field),
        multiple=declared.repeatable,
        help=f"{text} Repeatable." if declared.repeatable else text,
    )


def setting_option(
    name: str, *, help: str = "", default: str = "", required: bool = False
) -> Decorator:
    """Return the option of a setting, with its type, for a command without configuration files.

    Args:
        name: of the setting.
        help: replaces the setting's own.
        default: text for a default that the command chooses; empty for the setting's own.
        required: True if the option must be given.
    """
    field = Settings.model_fields[name]
    return click.option(
        f"--{name.replace('_', '-')}",
        type=_type(field),
        default=None if default or required else field.default,
        required=required,
        metavar=_placeholder(field),
        help=sentence(
            help or field.description or "", "" if required else default or default_text(field)
        ),
    )


class _ImageSizeType(click.ParamType):  # type: ignore[type-arg]  # not in click 8.1
    """A `Size`, such as ``48x64``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the size; a text that is none is an error."""
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


def _placeholder(field: FieldInfo) -> str:
    return declaration_of(field).metavar or "|".join(map(str, get_args(field.annotation)))


def _type(field: FieldInfo) -> Any:
    if declaration_of(field).metavar == "N|HxW":
        return _ImageSizeType()
    if declaration_of(field).metavar == "8|16":
        return click.Choice(("8", "16"))
    types = get_args(field.annotation) or (field.annotation,)
    bounds = {
        name: getattr(part, name)
        for part in field.metadata
        for name in ("ge", "gt", "le")
        if hasattr(part, name)
    }
    if int in types:
        return click.IntRange(bounds.get("ge"), bounds.get("le"))
    if float in types:
        return click.FloatRange(bounds.get("gt"), min_open=True)
    if declaration_of(field).metavar in ("DIR", "FILE", "PATH"):
        return PATH
    return click.Choice(types) if isinstance(types[0], str) else str


JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
QUIET = click.option("--quiet", is_flag=True, help="Show only warnings and results.")
VERBOSE = click.option("--verbose", is_flag=True, help="Show every row of metrics.")
RUN = click.argument("run", type=PATH)
MODEL = click.argument("model", type=PATH)
"""The folder of a run or of an exported model."""
ROOT = setting_option("root", help="base directory of the paths in a manifest")
WORKERS = setting_option("workers", default="one per core, at most 8")
BATCH_SIZE = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=64,
    metavar="N",
    help="Number of images per batch (default: 64).",
)
PRIOR = click.option(
    "--prior",
    metavar="FILE|estimate",
    help="Adjust the probabilities to the class shares of these images: a .json or .csv file of "
    "class and share, or estimate to estimate them.",
)


class _ShareType(click.ParamType):  # type: ignore[type-arg]  # not in click 8.1
    """A share in (0, 1], for an option whose value can be left out."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; a text that is none is an error."""
        try:
            share = float(value)
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            hint = "above 0 and at most 1, such as --reject=0.9; without a share, write it last"
            self.fail(f"{value!r} is not a share {hint}", param, ctx)
        return share


REJECT = options(
    click.option(
        "--reject",
        type=_ShareType(),
        is_flag=False,
        flag_value="0.95",
        metavar="[SHARE]",
        help="Reject strangers, images of no class: accept this share of validation images or, "
        "with fewer than 50, of unlabeled ones (without a value: 0.95).",
    ),
    click.option(
        "--reject-above",
        type=float,
        metavar="SCORE",
        help="Reject images with a larger stranger score; inf to reject none.",
    ),
)
INFERENCE = options(setting_option("device"), BATCH_SIZE, WORKERS)
"""How to compute with a trained model."""
RESUMABLE = options(
    *(
        setting_option(name, help=_help, default="unchanged")
        for name, field in Settings.model_fields.items()
        if (_help := declaration_of(field).resume_help)
    )
)
"""Settings that `resume` changes."""
