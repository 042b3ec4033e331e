"""Data is known by what is in it: the same names over other images are refused, everywhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import call, refusal
from PIL import Image
from webdataset_shards import samples, shard

from ssl_toolkit.data.load import read_data
from ssl_toolkit.data.readers import image_files
from ssl_toolkit.data.readers.arrays import ImageArray, array_table
from ssl_toolkit.data.readers.image_files import ImageFiles
from ssl_toolkit.data.splits.contents import compare_contents, content_of
from ssl_toolkit.data.splits.draw import draw_split
from ssl_toolkit.data.splits.split_file import (
    compare_files,
    load_split,
    save_split,
    split_hash,
)
from ssl_toolkit.errors import DataError
from ssl_toolkit.interfaces import ImageTable

SMALL = (
    "--image-size", "8", "--backbone", "wrn_10_1", "--steps", "2", "--eval-every", "2",
    "--batch-size", "4", "--device", "cpu",
)  # fmt: skip

Change = Callable[[Path], object]


def files_of(table: ImageTable) -> ImageFiles:
    """The files of a table that has some."""
    files = image_files.files_of(table)
    assert files is not None
    return files


def draw(path: Path, seed: int, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (10, 10, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path, **options)


def make_folder(top: Path) -> Path:
    names = [f"{part}/{name}/{n}.png" for part in ("labeled", "test") for name in "ab"
             for n in range(4)]  # fmt: skip
    for seed, name in enumerate([*names, *(f"unlabeled/{n}.png" for n in range(6))]):
        draw(top / name, seed)
    return top


def swap(top: Path, *, keep: bool = False) -> None:
    """Exchange the content of the two class folders, under the same names."""
    for first in [*top.glob("labeled/a/*.png"), *top.glob("test/a/*.png")]:
        second = first.parent.with_name("b") / first.name
        one, two = first.read_bytes(), second.read_bytes()
        for path, content in ((first, two), (second, one)):
            result = path.stat()
            path.write_bytes(content)
            if keep:
                os.utime(path, ns=(result.st_atime_ns, result.st_mtime_ns))


def reencode(top: Path) -> None:
    for path in top.glob("test/b/*.png"):
        Image.open(path).save(path, compress_level=0)


def touch(top: Path) -> None:
    for path in top.rglob("*.png"):
        os.utime(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Data, a copy of it, and a comparison of one run on it."""
    top = tmp_path_factory.mktemp("changed")
    data = make_folder(top / "data")
    shutil.copytree(data, top / "copy")
    given = ("--algos", "supervised", "--seeds", "0", "--data", data, *SMALL)
    result = call("compare", *given, "--output", top / "cmp")
    assert result.returncode == 0, result.stderr
    return data, top / "copy", top / "cmp"


@pytest.fixture
def data(made: tuple[Path, Path, Path]) -> Iterator[Path]:
    """The data, to be changed; it is put back with its times afterwards."""
    folder, copy, _ = made
    yield folder
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


@pytest.fixture
def comparison(made: tuple[Path, Path, Path]) -> Path:
    return made[2]


def again(data: Path, comparison: Path, *more: object) -> tuple[object, ...]:
    given = ("--algos", "supervised,fixmatch", "--seeds", "0", "--data", data, *SMALL)
    return ("compare", *given, "--output", comparison, *more)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (swap, "8 of 8 labeled and 8 of 8 test images differ"),
        (lambda top: draw(top / "labeled/a/2.png", 99), "1 of 8 labeled images differ"),
        (lambda top: draw(top / "unlabeled/3.png", 99), "some of the 6 unlabeled images differ"),
        (reencode, "4 of 8 test images differ"),
        (lambda top: (top / "unlabeled/3.png").unlink(), "1 of 6 unlabeled images that the"),
        (lambda top: (top / "test/a/0.png").rename(top / "test/a/x.png"), "1 of 8 test images"),
    ],
)
def test_changed_data_is_refused(change: Change, text: str, data: Path, comparison: Path) -> None:
    change(data)
    run = comparison / "runs/supervised/s0"
    new = ("run", "--algo", "supervised", "--data", data, *SMALL)
    for given in (
        again(data, comparison),
        ("evaluate", run),
        ("resume", run, "--steps", "3"),
        ("resume", run, "--data", data),
        (*new, "--split", run / "split.json", "--output", comparison.parent / "none"),
    ):
        message = refusal(*given)
        assert len(message.splitlines()) == 1, message
        assert text in message
    checked = call("check-run", run)
    assert (checked.returncode, len(checked.stderr.splitlines())) == (1, 1)
    assert text in checked.stderr


def test_added_images_change_a_comparison_but_not_a_run(data: Path, comparison: Path) -> None:
    draw(data / "unlabeled/new.png", 99)
    draw(data / "labeled/a/new.png", 98)
    assert "1 labeled and 1 unlabeled images are new" in refusal(*again(data, comparison))
    run = comparison / "runs/supervised/s0"
    assert call("evaluate", run).returncode == 0
    assert call("check-run", run).returncode == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda top: draw(top / "labeled/a/9.png", 99),
        lambda top: (top / "labeled/a/9.png").unlink(),
        lambda top: (top / "labeled/a/9.png").rename(top / "labeled/a/x.png"),
    ],
)
def test_images_that_no_run_has_drawn_are_data_of_a_comparison(
    change: Change, tmp_path: Path
) -> None:
    data = make_folder(tmp_path / "data")
    draw(data / "labeled/a/9.png", 9)
    given = ("--algos", "supervised", "--data", data, *SMALL, "--labels-per-class", "1")
    given = ("compare", *given, "--output", tmp_path / "cmp")
    assert call(*given, "--seeds", "0").returncode == 0
    assert "labeled/a/9.png" not in (tmp_path / "cmp/runs/supervised/s0/split.json").read_text()
    change(data)
    message = refusal(*given, "--seeds", "0,1")
    assert "inputs changed since it started: data; restore them, or compare into" in message
    assert not (tmp_path / "cmp/runs/supervised/s1").exists()


def test_seeds_of_other_data_or_weights_are_in_no_report(
    data: Path, comparison: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights.safetensors"
    new = ("run", "--algo", "supervised", "--data", data, *SMALL, "--weights", weights)
    model = comparison / "runs/supervised/s0/model/model.safetensors"
    shutil.copy(model, weights)
    assert call(*new, "--output", tmp_path / "first").returncode == 0
    draw(data / "test/a/0.png", 99)
    shutil.copy(tmp_path / "first/model/model.safetensors", weights)
    assert call(*new, "--seed", 1, "--output", tmp_path / "second").returncode == 0
    message = refusal("report", tmp_path / "first", tmp_path / "second",
                   "--output", tmp_path / "report")  # fmt: skip
    assert "data must be the same in all rows and for all seeds" in message
    assert "weights file must be the same in all rows and for all seeds" in message
    assert not (tmp_path / "report").exists()


def test_other_weights_under_the_same_name_are_refused(
    data: Path, comparison: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "weights.safetensors"
    shutil.copy(comparison / "runs/supervised/s0/model/model.safetensors", weights)
    given = ("compare", "--data", data, *SMALL, "--weights", weights, "--output", tmp_path / "cmp")
    given = (*given, "--seeds", "0", "--algos")
    assert call(*given, "supervised").returncode == 0
    shutil.copy(tmp_path / "cmp/runs/supervised/s0/model/model.safetensors", weights)
    message = refusal(*given, "supervised,fixmatch")
    assert "inputs changed since it started: weights file" in message
    assert not (tmp_path / "cmp/runs/fixmatch").exists()


def test_the_same_images_with_other_times_are_the_same(data: Path, comparison: Path) -> None:
    touch(data)
    run = comparison / "runs/supervised/s0"
    checked = call("check-run", run)
    assert checked.returncode == 0, checked.stderr
    assert "and its data" in checked.stdout
    assert call("evaluate", run).returncode == 0


def test_moved_data_is_compared_in_its_new_location_or_not_at_all(
    data: Path, comparison: Path, tmp_path: Path
) -> None:
    run = comparison / "runs/supervised/s0"
    moved = Path(shutil.move(data, tmp_path / "moved"))
    result = call("check-run", run)
    assert result.returncode == 0, result.stderr
    assert f"its data was not compared: --data {data} doesn't exist" in result.stdout
    output = json.loads(call("check-run", run, "--json").stdout)
    assert "doesn't exist" in output["data_not_compared"]
    assert "finished already" in call("resume", run, "--data", moved).stdout
    swap(moved)
    assert "8 of 8 labeled" in refusal("resume", run, "--data", moved)
    shutil.move(moved, data)


def test_a_change_is_noticed_even_if_times_hide_it(
    data: Path, comparison: Path, tmp_path: Path
) -> None:
    run = comparison / "runs/supervised/s0"
    swap(data, keep=True)
    new = ("run", "--algo", "supervised", "--data", data, *SMALL)
    assert call(*new, "--output", tmp_path / "run").returncode == 0
    ours, theirs = (json.loads((path / "record.json").read_text())["split"]
                    for path in (tmp_path / "run", run))  # fmt: skip
    assert ours != theirs
    assert call("evaluate", tmp_path / "run").returncode == 0
    assert "8 of 8 labeled and 8 of 8 test images differ" in refusal("evaluate", run)


def test_rows_of_other_data_are_in_no_report(data: Path, comparison: Path, tmp_path: Path) -> None:
    swap(data)
    new = ("run", "--algo", "fixmatch", "--data", data, *SMALL, "--output", tmp_path / "run")
    assert call(*new).returncode == 0
    message = refusal("report", comparison / "runs/supervised/s0", tmp_path / "run",
                   "--output", tmp_path / "report")  # fmt: skip
    assert "split of seed 0 must be the same in all rows" in message
    assert "(8 of 8 labeled and 8 of 8 test images differ)" in message
    assert not (tmp_path / "report").exists()


# --- what the digests cover ---------------------------------------------------------------------


def described_changes(table: Any, other: Any) -> str:
    """What has changed from one table to another, of the same names, in the split of the first."""
    split = draw_split(table, seed=0, labels_per_class=1)
    result = compare_contents(
        content_of(table, split), content_of(other, split), len(split.unlabeled)
    ).description
    assert (split_hash(table, split) == split_hash(other, split)) == (not result)
    return result


def test_labels_are_part_of_the_data(tmp_path: Path) -> None:
    for n in range(6):
        draw(tmp_path / f"{n}.png", n)
    lines = [f"{n}.png,{'ab'[n % 2]},{'test' if n > 3 else 'labeled'}\n" for n in range(6)]
    tables = []
    for name, text in (("x", "".join(lines)), ("y", "".join(lines).replace("5.png,b", "5.png,a"))):
        (tmp_path / f"{name}.csv").write_text("path,label,split\n" + text)
        tables.append(read_data(tmp_path / f"{name}.csv", size=8))
    assert described_changes(*tables) == "1 of 2 test images have another label"


def test_images_in_arrays(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 4, 4)).astype(np.uint8)
    parts = np.array(["pool"] * 8 + ["test"] * 4)

    def table(changed: int | None) -> Any:
        pixels = images.copy()
        if changed is not None:
            pixels[changed, 0, 0] ^= 1
        return array_table("ab", [ImageArray("x/", parts, pixels, np.arange(12) % 2)])

    assert described_changes(table(None), table(9)) == "1 of 4 test images differ"
    unlabeled = draw_split(table(None), seed=0, labels_per_class=1).unlabeled
    assert (
        described_changes(table(None), table(unlabeled[0]))
        == "some of the 6 unlabeled images differ"
    )
    # A data set of somebody else may know no digests.
    bare = [replace(table(changed), digest=None) for changed in (None, 9)]
    assert described_changes(*bare) == "1 of 4 test images differ"


def test_shards_and_streams(tmp_path: Path) -> None:
    def made(name: str, pool: int) -> Path:
        shard(tmp_path / name / "labeled.tar", samples(4))
        shard(tmp_path / name / "test.tar", samples(2, start=10))
        images = [content for _, content in samples(3, start=pool, labeled=False)]
        members = [(f"{n}.png", content) for n, content in enumerate(images)]
        shard(tmp_path / name / "unlabeled.tar", members)
        return tmp_path / name

    one, two = made("one", 20), made("two", 40)
    assert described_changes(read_data(one, size=8), read_data(two, size=8)) == (
        "some of the 3 unlabeled images differ"
    )
    tables = [read_data(path) for path in (one, two)]
    split = draw_split(tables[0], seed=0)
    for table in tables:
        files_of(table).cache_only(np.concatenate([split.labeled, split.test]))
    streamed = [content_of(table, split) for table in tables]
    read = content_of(read_data(one, size=8), split)
    # Streamed images are known by where they lie and how long they are, not by their bytes.
    assert compare_contents(streamed[0], streamed[1], 3).description == ""
    assert compare_contents(streamed[0], read, 3).description == ""
    assert streamed[0].unlabeled != read.unlabeled
    shard(two / "unlabeled.tar", [(f"{n}.png", b"longer" * 40) for n in range(3)])
    tables[1] = read_data(two)
    files_of(tables[1]).cache_only(split.labeled)
    changed = compare_contents(streamed[0], content_of(tables[1], split), 3)
    assert changed.description == "some of the 3 unlabeled images differ"


def test_no_file_is_read_for_what_the_cache_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "data")
    split = draw_split(read_data(folder), seed=0)
    first = content_of(read_data(folder, size=8), split)

    def refuse(path: Path) -> None:
        raise AssertionError(path)

    monkeypatch.setattr(image_files, "open_content", refuse)
    lazily = read_data(folder)
    files_of(lazily).open_existing(8)
    for table in (read_data(folder, size=8), lazily):
        assert compare_contents(first, content_of(table, split), 6).description == ""


def test_split_files_report_differences_without_the_data(tmp_path: Path) -> None:
    table = read_data(make_folder(tmp_path / "data"), size=8)
    split = draw_split(table, seed=0)
    save_split(tmp_path / "one.json", table, split)
    swap(tmp_path / "data")
    (tmp_path / "data/unlabeled/2.png").unlink()
    draw(tmp_path / "data/unlabeled/9.png", 77)
    other = read_data(tmp_path / "data", size=8)
    save_split(tmp_path / "two.json", other, draw_split(other, seed=0))
    assert compare_files(tmp_path / "one.json", tmp_path / "one.json") == ""
    assert compare_files(tmp_path / "one.json", tmp_path / "two.json") == (
        "8 of 8 labeled and 8 of 8 test images differ, 1 of 6 unlabeled images are gone, "
        "1 unlabeled images are new"
    )
    assert compare_files(tmp_path / "one.json", tmp_path / "gone.json") == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["test_content"].reverse(),
        lambda s: s["test_content"].pop(),
        lambda s: s["unlabeled_content"].__setitem__(0, "x"),
        lambda s: s["labeled_content"].__setitem__(0, "no digest"),
    ],
)
def test_edited_digests(change: Callable[[Any], object], tmp_path: Path) -> None:
    table = read_data(make_folder(tmp_path / "data"), size=8)
    path = tmp_path / "split.json"
    save_split(path, table, draw_split(table, seed=0))
    load_split(path, table).check(table)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="doesn't match its hash"):
        load_split(path, table)
