"""docs/start/coming-from.md: the keys that it gives exist, and its blocks run."""

from __future__ import annotations

import re

import pytest
from doc_pages import DOCS, blocks, commands, do, sections

from ssl_toolkit import registry
from ssl_toolkit.config.options import fields_of
from ssl_toolkit.config.other_names import our_name
from ssl_toolkit.config.settings import Settings

PAGE = (DOCS / "start/coming-from.md").read_text("utf-8")
SECTIONS = sections(PAGE)
KEYS = {key for key, _ in fields_of(Settings)} | {"ema", "imbalance"}
USB = [line.split("|")[1:4] for line in SECTIONS["USB and TorchSSL"].splitlines() if "`" in line]
ROWS = [[cell.strip() for cell in row] for row in USB if len(row) == 3]


def exists(key: str) -> bool:
    section, _, option = key.rpartition(".")
    if key in KEYS or not registry.has("algorithms", section):
        return key in KEYS
    return option in registry.load("algorithms", section).Config.model_fields


def test_every_key_of_the_table_exists() -> None:
    ours = [key for row in ROWS for key in re.findall(r"`([a-z_.]+)`", row[1])]
    assert len(ours) > 35
    assert [key for key in ours if not exists(key)] == []
    told = [key for row in ROWS for key in re.findall(r"`([a-z_]+\.[a-z_]+)(?:: \S+)?`", row[2])]
    assert len(told) > 5
    assert [key for key in told if not exists(key)] == []


def test_an_error_names_the_same_key_as_the_table() -> None:
    by_theirs = {
        theirs: {key.rpartition(".")[2] for key in re.findall(r"`([a-z_.]+)`", row[1] + row[2])}
        for row in ROWS
        for theirs in re.findall(r"`([a-zA-Z_]+)`", row[0])
    }
    suggested = {name: our_name(name) for name in by_theirs if our_name(name)}
    assert len(suggested) > 8
    for name, key in suggested.items():
        assert key is not None
        assert key.rpartition(".")[2] in by_theirs[name], name


def test_the_commands_print_settings() -> None:
    for line in commands(PAGE):
        result = do(line)
        assert result.returncode == 0, result.stderr


def test_the_estimator_learns(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(PAGE, "python")
    exec(block, {"__name__": "page"})
    assert float(capsys.readouterr().out.split()[0]) > 0.9
