"""The commands of the README and of the first pages after it parse."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from ssl_toolkit.commands import COMMANDS
from ssl_toolkit.config.yaml import find_config

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = ("start/first-run.md", "how-to/trained-model.md", "plugins/minimal-plugin.md")
TEXT = README + "".join((REPOSITORY / "docs" / page).read_text("utf-8") for page in PAGES)
SHELL = "\n".join(re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL))
COMMAND_LINES = sorted(
    {
        part.strip()
        for line in SHELL.splitlines()
        for part in line.split("&&")
        if part.strip().removeprefix(".venv/bin/").startswith("ssl-toolkit ")
    }
)


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_a_command_parses(line: str) -> None:
    _, name, *arguments = shlex.split(line, comments=True)
    assert name in COMMANDS
    command = importlib.import_module(f"ssl_toolkit.commands.{name.replace('-', '_')}").command
    parsed = command.make_context(name, arguments).params
    for file in parsed.get("files", ()):
        assert find_config(file).is_file()


def test_the_main_commands_are_shown() -> None:
    shown = {shlex.split(line, comments=True)[1] for line in COMMAND_LINES}
    assert shown >= {"run", "list", "show", "predict", "pseudo-label", "evaluate", "export"}


@pytest.mark.parametrize(
    ("marker", "end"),
    [
        ("run-command", ".venv/bin/ssl-toolkit run --algo supervised"),
        ("test-command", ".venv/bin/python -m pytest -n 2"),
    ],
)
def test_a_command_to_paste_is_one_line_that_sets_everything_up(marker: str, end: str) -> None:
    result = re.findall(rf"<!-- {marker} -->\n```bash\n(.*?)```", README, re.DOTALL)
    (command,) = result[0].splitlines()
    assert len(result) == 1
    assert command.startswith("python3 -m venv .venv && .venv/bin/python -m pip install -e ")
    assert command.endswith(end)


def test_the_readme_is_one_screen() -> None:
    assert len(README.splitlines()) < 100
    for page in PAGES[:2]:
        assert f"(docs/{page})" in README
