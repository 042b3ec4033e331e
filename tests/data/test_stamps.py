"""`benchmarks/stamps.py` copies the images of each folder of the stamps into a class."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "stamps.py"))


def test_a_folder_is_a_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in SCRIPT["SETS"]["fine"]:
        for name in ("one.png", "more/two.png", "one.txt", "three.svg"):
            path = tmp_path / "stamps" / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{folder} {name}")
    arguments = ["fine", str(tmp_path / "out"), "--stamps", str(tmp_path / "stamps")]
    SCRIPT["main"](arguments)
    assert capsys.readouterr().out.startswith("22 images: mammals 2, birds 2, ")
    assert len([*(tmp_path / "out").iterdir()]) == 11
    (copied,) = (tmp_path / "out" / "money").glob("*two.png")
    assert copied.name == "more_two.png"
    assert copied.read_text() == "symbols/money more/two.png"
    with pytest.raises(SystemExit, match="already exists"):
        SCRIPT["main"](arguments)
    with pytest.raises(SystemExit, match="has no folder animals"):
        SCRIPT["main"](["things", str(tmp_path / "new"), "--stamps", str(tmp_path / "out")])
