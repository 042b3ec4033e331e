"""What docs/how-to/own-images.md shows is what the readers take."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
from tiny_images import put, rows_of

from ssl_toolkit.data.load import read_data

PAGE = (Path(__file__).resolve().parents[2] / "docs/how-to/own-images.md").read_text("utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "suffix", "parts"),
    [
        ("csv", ".csv", ["labeled", "labeled", "unlabeled", "test"]),
        ("jsonl", ".jsonl", ["pool", "pool", "unlabeled"]),
        ("list", ".txt", ["pool", "pool", "unlabeled"]),
    ],
)
def test_a_manifest_of_the_page_is_read(tmp_path, kind, suffix, parts):
    (text,) = blocks(kind)
    for name in re.findall(r"[\w/]+\.jpg", text):
        put(tmp_path / name)
    (tmp_path / f"list{suffix}").write_text(text)
    assert [part for part, _ in rows_of(read_data(tmp_path / f"list{suffix}")).values()] == parts


def test_the_folders_of_the_page_are_read(tmp_path):
    layouts = [block for block in blocks("") if "images/" in block]
    assert len(layouts) == 3
    for place, text in enumerate(layouts):
        for name in re.findall(r"images/([\w/]+\.jpg)", text):
            put(tmp_path / str(place) / name)
            if "/cat/" in f"/{name}" and "dog" not in text:  # a second class, which the page omits
                put(tmp_path / str(place) / name.replace("cat/", "dog/"))
        assert read_data(tmp_path / str(place)).classes == ("cat", "dog")


def test_the_commands_of_the_page_parse():
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    assert len(lines) == 5
    for line in lines:
        _, name, *arguments = shlex.split(line)
        command = importlib.import_module(f"ssl_toolkit.commands.{name}").command
        command.make_context(name, arguments)
