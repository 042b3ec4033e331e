"""The set of letters in many typefaces, on Pillow's own font and on a sheet of real glyphs.

`glyphs.png` holds 16 typefaces of the set, a row each with its 36 glyphs, as `benchmarks/glyphs.py`
drew them; `glyphs.txt` names them.
"""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path
from typing import Any

import glyphs
import numpy as np
import pytest
from glyphs import CLASSES, FACE, SIZE, Typeface
from in_process import call
from PIL import Image, ImageFont

HERE = Path(__file__).parent
FONT = ImageFont.load_default(FACE)


def sheet() -> list[Typeface]:
    with Image.open(HERE / "glyphs.png") as image:
        pixels = np.asarray(image)
    rows = pixels.reshape(-1, SIZE, len(CLASSES), SIZE).transpose(0, 2, 1, 3)
    names = (HERE / "glyphs.txt").read_text("utf-8").split()
    assert len(names) == len(rows)
    return [Typeface(n, Path(f"{n}.ttf"), "p", "1", r) for n, r in zip(names, rows, strict=True)]


def test_a_glyph_fills_the_image_but_for_a_margin() -> None:
    for character in "AWI1":
        image = glyphs.draw(FONT, character)
        assert image is not None
        assert image.shape == (SIZE, SIZE)
        ink = image > 0
        rows, columns = ink.any(axis=1), ink.any(axis=0)
        assert max(rows.sum(), columns.sum()) == SIZE - 2
        assert not rows[0]
        assert not columns[0]
        assert abs(int(rows.argmax()) - int(rows[::-1].argmax())) <= 1
        assert abs(int(columns.argmax()) - int(columns[::-1].argmax())) <= 1
    assert glyphs.draw(FONT, " ") is None


def test_a_font_without_all_glyphs_is_refused() -> None:
    drawn = glyphs.glyphs(FONT)
    assert drawn is not None
    assert drawn.shape == (36, SIZE, SIZE)
    assert len({image.tobytes() for image in drawn}) == 36
    for replaced in ("漢", " "):  # drawn as the box for unknown characters, or not at all
        assert glyphs.glyphs(FONT, classes=CLASSES[:-1] + replaced) is None


def test_the_plainest_file_of_a_family_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {
        "a-bold.ttf": ("OCRABold", "Bold"),
        "a.otf": ("OCRA", "Regular"),
        "b-light.ttf": ("Lato Light", "Regular"),
        "b-italic.ttf": ("Lato", "Italic"),
        "b.ttf": ("Lato", "Regular"),
        "c.ttf": ("PT Serif", "Bold"),
    }
    for name in (*names, "broken.ttf", "readme.txt"):
        (tmp_path / name).touch()
    (tmp_path / "link.ttf").symlink_to(tmp_path / "b.ttf")

    class Font:
        def __init__(self, path: str, size: int) -> None:
            self.name = Path(path).name
            if self.name not in names:
                raise OSError("unknown file format")

        def getname(self) -> tuple[str, str]:
            return names[self.name]

    monkeypatch.setattr(ImageFont, "truetype", Font)
    result = glyphs.files_by_family([("fonts-x", "1.0", tmp_path)])
    files = {family: path.name for family, (path, _, _) in result.items()}
    assert files == {"ocra": "a.otf", "lato": "b.ttf", "pt": "c.ttf"}
    assert result["pt"][1:] == ("fonts-x", "1.0")


def test_symbols_and_look_alikes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = {typeface.name: typeface.glyphs for typeface in sheet()}
    first = next(iter(stacks))
    rolled = np.roll(stacks[first], 7, axis=0)  # good images of the wrong letters
    given = stacks | {"zz-copy": stacks[first], "zz-symbols": rolled}
    monkeypatch.setattr(ImageFont, "truetype", lambda path, size: path)
    monkeypatch.setattr(glyphs, "glyphs", lambda path, size, classes: given[path])
    files = {name: (Path(name), "p", "1") for name in given}
    kept = [typeface.name for typeface in glyphs.typefaces(files)]
    assert kept[0] == first
    assert set(kept) <= set(stacks)
    assert len(kept) > len(stacks) / 2  # some of so few typefaces are unlike the mean of the rest


def test_a_typeface_keeps_its_part_and_parts_have_their_shares() -> None:
    parts = [glyphs.part(f"face {i}") for i in range(4000)]
    shares = [parts.count(name) / 4000 for name in ("train", "val", "test")]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.03)
    assert [glyphs.part(name) for name in ("lato", "dejavu", "weaver")] == [
        "train",
        "test",
        "train",
    ]


def test_the_set_is_a_folder_to_train_on(tmp_path: Path) -> None:
    faces = sheet()
    glyphs.write(faces, tmp_path / "set")
    with (tmp_path / "set" / "typefaces.csv").open(encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [row["typeface"] for row in table] == [face.name for face in faces]
    for row, face in zip(table, faces, strict=True):
        with Image.open(tmp_path / "set" / row["split"] / "Q" / f"{face.name}.png") as image:
            assert (np.asarray(image) == face.glyphs[CLASSES.index("Q")]).all()
    result = call(
        "run", "--algo", "simple", "--data", tmp_path / "set", "--image-size", "16", "--backbone",
        "wrn_10_1", "--labels-per-class", "2", "--steps", "2", "--batch-size", "4", "--output",
        tmp_path / "run", "--quiet", "--set", "augment.flip=false", "--device", "cpu",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    parts = [row["split"] for row in table]
    labeled, unlabeled = 72, 36 * (parts.count("train") - 2)
    assert f"{labeled} labeled, {unlabeled} unlabeled" in result.stdout
    assert f"{36 * parts.count('val')} validation" in result.stdout
    assert f"{36 * parts.count('test')} test" in result.stdout


def test_packages_are_downloaded_once_and_a_failure_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def run(command: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append([str(part) for part in command])
        if command[0] == "apt-get":
            for name in command[2:]:
                (tmp_path / f"{name}_4%3a1.2_all.deb").touch()
        else:
            Path(command[3]).mkdir()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    for expected in (3, 0):
        calls.clear()
        result = glyphs.fetch(tmp_path, ["one", "two"])
        assert len(calls) == expected
        assert [(name, version) for name, version, _ in result] == [
            ("fonts-one", "4:1.2"),
            ("fonts-two", "4:1.2"),
        ]

    def fail(command: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 100, "", "E: Unable to locate package x\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(SystemExit, match=r"Unable to locate package x.*apt-get update"):
        glyphs.fetch(tmp_path / "empty", ["x"])


@pytest.mark.parametrize("classes", ["abca", "a/b", ""])
def test_classes_must_be_unique_letters_or_digits(classes: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="each at most once"):
        glyphs.main([str(tmp_path / "new"), "--classes", classes])
