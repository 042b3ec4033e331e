"""docs/how-to/trained-model.md: its exported model gives the same probabilities in ONNX Runtime."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_pages import DOCS, blocks, commands, do, parse

PAGE = (DOCS / "how-to/trained-model.md").read_text("utf-8")


def test_the_exported_program_predicts_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    for line in commands(PAGE):
        parse(line)
        if "runs/digits" not in line:
            continue
        result = do(line)
        assert result.returncode == 0, result.stderr
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(PAGE, "python"):
        exec(block, names)
    difference = re.search(r"largest difference (\S+)", capsys.readouterr().out)
    assert difference is not None
    assert float(difference[1]) < 1e-5
