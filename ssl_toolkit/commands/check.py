"""``ssl-toolkit check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ssl_toolkit.commands.screen import echo_json
from ssl_toolkit.errors import visible_lines

if TYPE_CHECKING:
    from ssl_toolkit.testing import RuleResult

KINDS = ("algorithm", "augmenter", "backbone", "dataset", "launcher", "logger")
COLORS = {"passed": "green", "broken": "red"}


@click.command(short_help="Check that a plugin keeps its contract.")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), help="Of plugin, where several have the name.")
@click.option("--device", default="cpu", show_default=True, help="Where to compute.")
@click.option("--root", type=click.Path(path_type=Path), help="Folder with a data set's files.")
@click.option("--verbose", is_flag=True, help="List the rules that are kept too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Tracebacks of errors.")
def command(
    name: str, kind: str | None, device: str, root: Path | None, verbose: bool, as_json: bool
) -> int:
    """Check every rule of the contract of the plugin NAME, and tell what is broken and why.

    Tells the rules that are broken, and how many are kept; --verbose lists those too.

    Exit status 0 when all rules are kept, 1 when one is broken. docs/contract-kit.md explains
    the rules; `ssl_toolkit.testing` checks them in tests of your own.
    """
    from ssl_toolkit.testing import run_checks
    from ssl_toolkit.testing.subject import find_subject

    subject = find_subject(name, kind, device=device, root=root)
    results = run_checks(name, kind=subject.kind, device=device, root=root)
    broken = [result for result in results if not result.passed]
    if as_json:
        told = {"kind": subject.kind, "name": name, "rules": [_plain(r) for r in results]}
        echo_json(told)
    else:
        _print(subject.kind, name, results, verbose)
    return 1 if broken else 0


def _plain(result: RuleResult) -> dict[str, Any]:
    rule = result.rule
    return {
        "rule": rule.name,
        "what": rule.what,
        "status": result.status,
        "found": result.told,
        "where": result.where,
        "why": rule.why,
        "cause": rule.cause,
        "seconds": round(result.seconds, 3),
    }


def _print(kind: str, name: str, results: tuple[RuleResult, ...], verbose: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if verbose:
        table = Table(title=f"{kind} {escape(name)}", title_justify="left")
        table.add_column("rule", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("what")
        for result in results:
            state = f"[{COLORS[result.status]}]{result.status}[/]"
            table.add_row(result.rule.name, state, escape(result.rule.what))
        console.print(table)
    else:
        console.print(f"{kind} {escape(name)}")
    broken = [result for result in results if not result.passed]
    for result in broken:
        console.print(escape(f"\n{visible_lines(result.explain())}"), soft_wrap=True)
    if broken:
        console.print()
    seconds = sum(result.seconds for result in results)
    kept = len(results) - len(broken)
    console.print(f"{kept} of {len(results)} rules kept ({seconds:.1f} s)")
