import json
import shutil

import numpy as np
import pytest
from in_process import call, refusal
from PIL import Image

from ssl_toolkit.reports import dataset


def facts(*arguments):
    done = call("inspect", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_report_on_a_labeled_folder(cases):
    report = facts(cases / "c05_modes")
    assert report["layout"] == "folders: labeled/<class>/, unlabeled/, test/<class>/"
    assert report["classes"] == ["a", "b", "c", "d"]
    assert report["counts"] == {"labeled": 18, "unlabeled": 13, "test": 12}
    assert report["per_class"]["a"] == {"labeled": 5, "test": 3}
    assert report["balance"] == {"largest": 5, "smallest": 4}
    assert report["modes"]["CMYK"] == 1
    assert report["extensions"] == {".png": 42, ".jpg": 1}
    assert report["widths"] == {"least": 32, "median": 32.0, "largest": 32}
    assert (
        report["unreadable"] == report["duplicates"] == report["leaks"] == report["warnings"] == []
    )
    assert "ignored folders: predict" in report["notes"]


def test_sizes_are_those_of_upright_images(cases, tmp_path):
    report = facts(cases / "c06_ext_sizes")
    assert (report["widths"]["least"], report["widths"]["largest"]) == (1, 2000)
    assert (report["heights"]["least"], report["heights"]["largest"]) == (1, 2000)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(cases / "c04_exif/predict/o6.jpg", tmp_path / name / "1.jpg")
    report = facts(tmp_path)
    assert report["layout"] == "folders: <class>/"
    assert report["widths"] == {"least": 32, "median": 32.0, "largest": 32}  # 48 in the file
    assert report["heights"]["least"] == 48


def test_only_some_of_many_classes_are_shown(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02}").mkdir()
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number:02}" / "a.png")
    text = call("inspect", tmp_path).stdout
    assert "classes: 30\n  00: pool 1\n" in text
    assert "  19: pool 1\n  and 10 more (--json lists all)\n" in text
    assert "  20: " not in text


def test_the_long_tails_are_those_of_a_run(tmp_path):
    for name in "abc":
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(40):
            pixels = np.full((8, 8, 3), number + 50 * (ord(name) - 97), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{number}.png")
    flags = ("--imbalance", "1/4", "--labels-per-class", 8)
    lines = call("inspect", tmp_path / "data", *flags).stdout.splitlines()
    assert "long tail of labels (1/4): a 2, b 4, c 8" in lines
    planned = call("run", "--data", tmp_path / "data", *flags, "--dry-run").stdout.splitlines()
    tails = [line for line in lines if line.startswith("long tail")]
    assert tails == [line.removeprefix("# ") for line in planned if "# long tail" in line]
    assert len(tails) == 2
    assert "--imbalance" in refusal("inspect", tmp_path / "data", "--labels-per-class", 8)


def test_unreadable_files_duplicates_and_leaks(cases, tmp_path):
    data = shutil.copytree(cases / "c16_labeled_in_unlabeled", tmp_path / "data")
    (data / "test/a/t_0.png").write_bytes(b"no image")
    shutil.copy(data / "test/b/t_0.png", data / "unlabeled/again.png")
    report = facts(data)
    assert report["unreadable"] == [
        {"path": str(data / "test/a/t_0.png"), "reason": "not an image"}
    ]
    assert report["counts"]["test"] == 11
    assert len(report["duplicates"]) == 17
    (leak,) = report["leaks"]
    assert [image["path"] for image in leak] == ["test/b/t_0.png", "unlabeled/again.png"]
    assert "1 unlabeled images are test images too" in report["warnings"][0]
    text = call("inspect", data).stdout
    assert "unreadable: 1\n" in text
    assert "t_0.png: not an image" in text
    assert "byte-identical: 17\n" in text
    assert "test/b/t_0.png (test) = unlabeled/again.png (unlabeled)" in text
    assert "warning: byte-identical images: 1 unlabeled" in text


def test_lists_are_cut_on_the_screen(cases, tmp_path):
    data = shutil.copytree(cases / "c00_base", tmp_path / "data")
    for number in range(30):
        (data / f"unlabeled/bad_{number:02}.png").write_bytes(b"")
    text = call("inspect", data).stdout
    assert "unreadable: 30\n" in text
    assert "bad_19.png: empty file" in text
    assert "bad_20.png" not in text
    assert "and 10 more (--json lists all)" in text
    assert len(facts(data)["unreadable"]) == 30


def test_lines_fit_a_terminal_of_80_columns(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    for part in ("labeled", "test"):
        for label in range(30):
            folder = tmp_path / part / f"a_long_name_of_a_class_{label}"
            folder.mkdir(parents=True)
            for index in range(2):
                pixels = draw.integers(0, 256, (8, 8, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{index}.{'jpg' if index else 'png'}")
    monkeypatch.setenv("COLUMNS", "80")
    lines = call("inspect", tmp_path).stdout.splitlines()
    # A path without a space is never broken.
    assert not [line for line in lines if len(line) > 80 and " " in line.strip()]


def test_a_manifest_with_a_root(cases, tmp_path):
    lines = ["path,label,split"]
    for kind in "ab":
        lines += [f"labeled/{kind}/img_{number}.png,{kind},train" for number in range(2)]
        lines.append(f"test/{kind}/t_0.png,{kind},test")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    report = facts(tmp_path / "list.csv", "--root", cases / "c00_base")
    assert report["layout"] == "a list of images, list.csv"
    assert report["counts"] == {"pool": 4, "test": 2}
    assert "none of the 6 images" in refusal("inspect", tmp_path / "list.csv")


def test_a_sheet_shows_each_class_and_the_unlabeled(cases, tmp_path):
    sheet = tmp_path / "sheet.png"
    text = call("inspect", cases / "c00_base", "--contact-sheet", sheet).stdout
    assert f"contact sheet: {sheet}" in text
    step = dataset._TILE + dataset._GAP
    with Image.open(sheet) as image:
        assert image.height == 5 * step + dataset._GAP
        pixels = np.asarray(image.convert("RGB")).astype(int)
    for line, channel in ((0, 0), (1, 1), (2, 2)):  # classes a, b, c: red, green, blue
        top = dataset._GAP + line * step
        left = dataset._NAME
        tile = pixels[top : top + dataset._TILE, left : left + dataset._TILE]
        assert tile.mean((0, 1)).argmax() == channel
    row = pixels[4 * step + 4 : 5 * step, dataset._NAME :]
    assert (row < 250).any(axis=(0, 2)).mean() > 0.9  # ten of the unlabeled ones


def test_names_of_any_script(cases, tmp_path):
    done = call("inspect", cases / "c13_names", "--contact-sheet", tmp_path / "sheet.png")
    assert done.returncode == 0, done.stderr
    assert "  [red]bracket: " in done.stdout


@pytest.mark.parametrize(
    ("sheet", "reason"),
    [("sheet.jpg", "must be a .png file"), ("data/sheet.png", "this is in the folder of the data")],
)
def test_sheets_that_are_refused(cases, tmp_path, sheet, reason):
    data = shutil.copytree(cases / "c00_base", tmp_path / "data")
    message = refusal("inspect", data, "--contact-sheet", tmp_path / sheet)
    assert reason in message
    assert not (tmp_path / sheet).exists()


def test_unreadable_data_is_refused(cases, tmp_path):
    assert "labeled/<class>/" in refusal("inspect", tmp_path)
    assert "doesn't exist" in refusal("inspect", tmp_path / "nowhere")
    message = refusal("inspect", cases / "c00_base", "--image-size", "none")
    assert "value for '--image-size': 'none' must be a side in pixels" in message


def test_a_run_uses_what_inspect_decoded(cases, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    assert call("inspect", cases / "c00_base").returncode == 0
    made = set((tmp_path / "cache/images").iterdir())
    done = call(
        "run", "--algo", "supervised", "--backbone", "test_resnet", "--steps", "1",
        "--batch-size", "4", "--data", cases / "c00_base", "--output", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set((tmp_path / "cache/images").iterdir()) == made
