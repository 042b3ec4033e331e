"""The command line. A command's module is imported when it runs, torch only where it is needed."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from keyword import iskeyword
from typing import Any, NoReturn

import click

import ssl_toolkit
from ssl_toolkit.errors import ToolkitError, UserError, one_line, visible_lines
from ssl_toolkit.interrupts import STATUS, end_soon, exit_status, handled
from ssl_toolkit.stdio import missed, protect

COMMANDS = {
    "run": "Train an algorithm and test it.",
    "compare": "Compare algorithms under identical configurations.",
    "benchmark": "Compare algorithms on the data sets of a suite.",
    "reproduce": "Run rows of published tables, and report both numbers.",
    "resume": "Resume an interrupted run, or extend a finished one.",
    "report": "Write tables and an HTML page of runs or a comparison.",
    "check-run": "Check that a run's folder is complete and consistent.",
    "evaluate": "Score a trained model.",
    "predict": "Classify images with a trained model.",
    "pseudo-label": "Label a pool of images with a trained model.",
    "embed": "Compute the features of images with a pre-trained backbone.",
    "label": "Label images: choose the next ones, label them on a page.",
    "export": "Export a run's model: timm, torch.export, ONNX.",
    "inspect": "Inspect images before training.",
    "list": "List installed plugins.",
    "show": "Show a plugin and its options.",
    "check": "Check a plugin against its contract.",
    "new": "Create a project for a plugin.",
    "doctor": "Check this installation.",
}

IN_FILES = (
    *("run", "compare", "benchmark", "reproduce", "resume", "report"),
    *("predict", "pseudo-label", "label", "export", "new"),
)
"""Commands whose results are in files, so that lost output is no error."""

MOST_ERRORS = 25
"""Lines for the faults of one command: beyond that, only how many more there are."""

_TYPES = re.compile(r"a valid (integer|float)( range)?")
_PLAIN = {"integer": "an integer", "float": "a number"}


class LazyGroup(click.Group):
    """A group whose commands are modules of a package, imported when they run.

    Args:
        package: Import path of the package.
        helps: Line of help by name of a command.
        attributes: As for `click.Group`.
    """

    def __init__(self, *, package: str, helps: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.package: str = package
        self.helps: Mapping[str, str] = helps

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the help."""
        return [*self.helps]  # `list` is the module of that command here, once it was imported

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, imported now."""
        if cmd_name not in self.helps:
            return None
        name = cmd_name.replace("-", "_") + "_" * iskeyword(cmd_name)
        module = importlib.import_module(f"{self.package}.{name}")
        command: click.Command = module.command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, but show the help, not an error, when there are no arguments."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(UserError.exit_status)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command as click does, but suggest a near name for an unknown one."""
        if args and args[0] not in self.helps and not args[0].startswith("-"):
            from ssl_toolkit.registry import did_you_mean

            raise click.UsageError(
                f"no such command {args[0]!r}{did_you_mean(args[0], [*self.helps])}; "
                f"commands: {', '.join(self.helps)}"
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command as click does, but keep the signal that interrupts it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise click.exceptions.Exit(exit_status(error)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([*self.helps.items()])


@click.command(
    cls=LazyGroup,
    package="ssl_toolkit.commands",
    helps=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(ssl_toolkit.__version__, prog_name="ssl-toolkit")
def cli() -> None:
    """Semi-supervised image classification: many images, few labels."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status.

    0 done; 2 the user's command, configuration, plugin, device or data is wrong; 1 failed while
    running; 130 after Ctrl-C and 143 after SIGTERM.
    """
    # Barriers that spin make small steps many times slower beside one other busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    protect()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names in any script, on a terminal of any encoding
            stream.reconfigure(errors="backslashreplace")
    argv = [_at_home(text) for text in (sys.argv[1:] if arguments is None else arguments)]
    with handled():
        try:
            if sys.platform == "win32":  # without its kind of locks two runs would mix
                raise UserError("ssl-toolkit runs on Linux and macOS; on Windows, use it in WSL")
            status = cli.main(argv, prog_name="ssl-toolkit", standalone_mode=False)
        except Exception as error:
            if "--debug" in argv:
                print(visible_lines(traceback.format_exc()), file=sys.stderr)
            status = _report(error)
        except KeyboardInterrupt as error:
            status = exit_status(error)
        if status in STATUS.values() and arguments is None:
            end_soon(status)
        in_files = argv[:1] and argv[0] in IN_FILES and "--dry-run" not in argv
        if not (status or in_files) and (message := missed(sys.stdout)):
            status = _report(message)
        sys.exit(status if isinstance(status, int) else 0)


def _usage(error: click.ClickException) -> str:
    """Return the message for wrong usage, with near names for options."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        message = error.format_message()
        message = _TYPES.sub(lambda match: _PLAIN[match[1]], message[:1].lower() + message[1:])
        return message.rstrip(".") + _way_out(error)
    from ssl_toolkit.registry import did_you_mean

    options = [
        one for one in error.ctx.command.get_params(error.ctx) if isinstance(one, click.Option)
    ]
    known = [name for one in options for name in (*one.opts, *one.secondary_opts)]
    return f"no such option {error.option_name}" + (
        _our_flag(error.option_name, known)
        or did_you_mean(error.option_name, known)
        or f"; see `{error.ctx.command_path} --help`"
    )


def _way_out(error: click.ClickException) -> str:
    """Return how to correct the arguments of a command; empty where the message says it."""
    context = getattr(error, "ctx", None)
    if context is None or type(error) not in (click.UsageError, click.MissingParameter):
        return ""
    if context.info_name in ("run", "compare", "reproduce"):
        return "; give a setting as --set KEY=VALUE, a configuration file as --config FILE"
    return f"; see `{context.command_path} --help`"


def _our_flag(option: str, known: Sequence[str]) -> str:
    """Return " (did you mean …?)" for an option that other tools have; empty for any other."""
    from ssl_toolkit.config.other_names import our_name
    from ssl_toolkit.config.settings import Settings

    key = our_name(option)
    if key is None:
        return ""
    if (flag := f"--{key.replace('_', '-')}") in known:
        return f" (did you mean {flag!r}?)"
    if "--set" not in known:
        return ""
    of_algorithm = "." not in key and key not in Settings.model_fields
    return f" (did you mean '--set {'algorithm.' * of_algorithm}{key}=VALUE'?)"


def _at_home(argument: str) -> str:
    """An argument with ``~`` as the home folder, also where shells leave it: ``--output=~/x``."""
    flag, equals, value = argument.partition("=")
    if flag.startswith("--") and value.startswith("~"):
        return flag + equals + os.path.expanduser(value)
    return os.path.expanduser(argument)


def _report(error: Exception) -> int:
    """Print an error, a line for each fault; return the exit status."""
    if isinstance(error, click.Abort):
        cause = error.__cause__
        return exit_status(cause) if isinstance(cause, KeyboardInterrupt) else 130
    messages: Sequence[Any] = [f"{type(error).__name__}: {error} (--debug shows where)"]
    status = 1
    if isinstance(error, ToolkitError):
        messages, status = () if error.already_reported else error.messages, error.exit_status
    elif isinstance(error, click.ClickException):
        messages, status = [_usage(error)], error.exit_code
    elif isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        messages = [f"{place}{error.strerror or error}"]
    for message in messages[:MOST_ERRORS]:
        print("error:", one_line(str(message)), file=sys.stderr)
    if len(messages) > MOST_ERRORS:
        print(f"error: and {len(messages) - MOST_ERRORS:,} more", file=sys.stderr)
    return status
