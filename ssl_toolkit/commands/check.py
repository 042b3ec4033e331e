"""``ssl-toolkit check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ssl_toolkit.commands.options import JSON, setting_option, toolkit_command
from ssl_toolkit.commands.screen import echo_json
from ssl_toolkit.errors import visible_lines

if TYPE_CHECKING:
    from ssl_toolkit.testing import RuleResult

KINDS = ("addon", "algorithm", "augmenter", "backbone", "dataset", "launcher", "logger")
COLORS = {"passed": "green", "failed": "red"}


@toolkit_command
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    metavar="KIND",
    help=f"Kind of plugin, if several have the name: {', '.join(KINDS)}.",
)
@click.option(
    "--device", default="cpu", metavar="NAME", help="Device to compute on (default: cpu)."
)
@setting_option("root", help="path to the files of a data set")
@click.option("--verbose", is_flag=True, help="List passed rules too.")
@JSON
def command(
    name: str, kind: str | None, device: str, root: Path | None, verbose: bool, as_json: bool
) -> int:
    """Check the plugin NAME against every rule of its contract.

    Print the broken rules with the reason, and the number of passed rules; --verbose lists those
    too. The exit status is 0 if all rules pass, and 1 otherwise. docs/plugins/contract-kit.md
    explains the rules; `ssl_toolkit.testing` checks them in your own tests.
    """
    from ssl_toolkit.testing.rules import run_rules
    from ssl_toolkit.testing.subject import find_subject

    subject = find_subject(name, kind, device=device, root=root)
    results = tuple(run_rules(subject, {}))
    if as_json:
        content = {"kind": subject.kind, "name": name, "rules": [_plain(r) for r in results]}
        echo_json(content)
    else:
        _print(subject.kind, name, results, verbose)
    return 0 if all(result.passed for result in results) else 1


def _plain(result: RuleResult) -> dict[str, Any]:
    rule = result.rule
    return {
        "rule": rule.name,
        "description": rule.description,
        "status": result.status,
        "finding": result.finding,
        "location": result.location,
        "rationale": rule.rationale,
        "cause": rule.cause,
        "seconds": round(result.seconds, 3),
    }


def _print(kind: str, name: str, results: tuple[RuleResult, ...], verbose: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from ssl_toolkit.testing.rules import explain_failures

    console = Console(highlight=False)
    if verbose:
        table = Table(title=f"{kind} {escape(name)}", title_justify="left")
        table.add_column("rule", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("description")
        for result in results:
            state = f"[{COLORS[result.status]}]{result.status}[/]"
            table.add_row(result.rule.name, state, escape(result.rule.description))
        console.print(table)
    else:
        console.print(f"{kind} {escape(name)}")
    failed = [result for result in results if not result.passed]
    for text in explain_failures(failed):
        console.print(escape(f"\n{visible_lines(text)}"), soft_wrap=True)
    if failed:
        console.print()
    seconds = sum(result.seconds for result in results)
    passed = len(results) - len(failed)
    console.print(f"{passed} of {len(results)} rules passed ({seconds:.1f} s)")
