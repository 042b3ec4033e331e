"""``ssl-toolkit predict``."""

from __future__ import annotations

import csv
import json
import os
import shutil
import stat
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from in_process import call, refusal

from ssl_toolkit import Model, load_model
from ssl_toolkit.data.readers.listing import list_images
from ssl_toolkit.inference.model import Scored
from ssl_toolkit.inference.predict import predict_table

BASE = ("run", "--algo", "supervised", "--backbone", "wrn_10_1", "--image-size", "16", "--steps",
        "2", "--batch-size", "8", "--device", "cpu", "--quiet")  # fmt: skip


@pytest.fixture(scope="module")
def run(cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict") / "run"
    result = call(*BASE, "--data", cases / "c00_base", "--output", folder)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    return load_model(run, "cpu")


@pytest.fixture
def pool(cases: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cases / "c00_base" / "unlabeled", tmp_path / "pool"))


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_rows_agree_with_the_model(run: Path, model: Model, pool: Path) -> None:
    result = call("predict", run, pool, "--probabilities", "--batch-size", "5", "--workers", "2")
    assert (result.returncode, result.stderr) == (0, "")
    rows = table(result.stdout)
    probabilities = [f"p_{name}" for name in "abcd"]
    assert [*rows[0]] == ["path", "class", "confidence", "error", *probabilities]
    paths = sorted(pool.iterdir())
    assert [row["path"] for row in rows] == [str(path) for path in paths]
    expected = model.predict(paths)
    message = np.array([[float(row[name]) for name in probabilities] for row in rows])
    np.testing.assert_allclose(message, expected, atol=1e-6)
    assert [row["class"] for row in rows] == ["abcd"[row.argmax()] for row in expected]
    confidences = [float(row["confidence"]) for row in rows]
    np.testing.assert_allclose(confidences, expected.max(axis=1), atol=1e-6)
    assert {row["error"] for row in rows} == {""}


def test_the_paths_are_as_typed(
    run: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pool / "deep").mkdir()
    (pool / "u_000.png").rename(pool / "deep" / "x.png")
    image = pool / "u_001.png"
    monkeypatch.chdir(tmp_path)
    given = ("./pool", "pool//", image, "pool/deep", "./pool/deep/../u_002.png")
    paths = [row["path"] for row in table(call("predict", run, *given).stdout)]
    assert paths[0] == "./pool/deep/x.png"
    assert paths[12] == "pool//deep/x.png"
    assert paths[24:] == [str(image), "pool/deep/x.png", "./pool/deep/../u_002.png"]
    monkeypatch.chdir(pool)
    assert table(call("predict", run, ".").stdout)[0]["path"] == "./deep/x.png"


def test_json_lines(run: Path, pool: Path, tmp_path: Path) -> None:
    (pool / "u_003.png").write_bytes(b"no image")
    output = tmp_path / "new" / "p.jsonl"
    result = call("predict", run, pool, "--output", output, "--probabilities")
    assert result.returncode == 1
    assert str(output) in result.stdout
    assert "1 of 12 images can't be read" in result.stderr
    rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert len(rows) == 12
    bad = rows.pop(3)
    assert bad == {
        "path": str(pool / "u_003.png"), "class": "", "confidence": None, "error": "not an image",
        **dict.fromkeys(("p_a", "p_b", "p_c", "p_d")),
    }  # fmt: skip
    for row in rows:
        assert row["class"] in "abcd"
        assert row["confidence"] == max(row[f"p_{name}"] for name in "abcd")
        assert sum(row[f"p_{name}"] for name in "abcd") == pytest.approx(1, abs=1e-5)


def test_unreadable_images_are_rows(run: Path, pool: Path) -> None:
    (pool / "empty.png").touch()
    (pool / "gone.png").symlink_to("nowhere.png")
    (pool / "notes.md").write_text("not an image, and not meant as one")
    whole = (pool / "u_000.png").read_bytes()
    (pool / "half.png").write_bytes(whole[: len(whole) // 2])
    result = call("predict", run, pool)
    assert result.returncode == 1
    assert "files not used, 1 (no image's extension)" in result.stderr
    assert f"{pool}/notes.md" in result.stderr
    rows = {Path(row["path"]).name: row for row in table(result.stdout)}
    assert len(rows) == 15
    bad = {name: row["error"] for name, row in rows.items() if row["error"]}
    assert bad.keys() == {"empty.png", "gone.png", "half.png"}
    assert bad["empty.png"] == "empty file"
    assert bad["gone.png"] == "broken link"
    for name, row in rows.items():
        assert (row["class"] == "") == (name in bad)
        assert (row["confidence"] == "") == (name in bad)


def test_a_file_named_by_the_user_is_an_image_whatever_its_extension(run: Path, pool: Path) -> None:
    renamed = (pool / "u_000.png").rename(pool / "u_000")
    result = call("predict", run, renamed)
    assert result.returncode == 0
    assert table(result.stdout)[0]["class"] in [*"abcd"]


def test_images_that_cannot_be_predicted(run: Path, pool: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    message = refusal("predict", run, tmp_path / "gone.png", empty, pool)
    assert message.splitlines() == [
        f"error: {tmp_path}/gone.png: no such image or folder",
        f"error: {empty}: there are no images in this folder",
    ]
    assert str(tmp_path / "gone") in refusal("predict", tmp_path / "gone", pool)
    assert "neither a run nor an exported model" in refusal("predict", empty, pool)
    assert "missing argument" in refusal("predict", run)
    assert "--device gpuu" in refusal("predict", run, pool, "--device", "gpuu")
    assert "--batch-size" in refusal("predict", run, pool, "--batch-size", "0")


def test_the_output_is_written_completely_or_not_at_all(
    run: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "p.csv"
    output.write_text("what was there before")

    def breaks(*_: object, **__: object) -> object:
        yield Scored(np.array([1, 0, 0, 0], np.float32), 0.0)
        raise OSError(28, "No space left on device", str(output))

    with monkeypatch.context() as patch:
        patch.setattr(Model, "scored", breaks)
        result = call("predict", run, pool, "--output", output)
    assert result.returncode == 1
    assert result.stderr == f"error: {output}: No space left on device\n"
    assert output.read_text() == "what was there before"
    assert sorted(os.listdir(tmp_path)) == ["p.csv", "pool"]
    assert call("predict", run, pool, "--output", output).returncode == 0
    assert len(table(output.read_text("utf-8"))) == 12


def test_an_output_that_cannot_be_written_is_reported_immediately(
    run: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "scored", None)
    assert "a folder has this name" in refusal("predict", run, pool, "--output", pool)
    message = refusal("predict", run, pool, "--output", pool / "u_000.png" / "p.csv")
    assert f"{pool}/u_000.png can't be written" in message
    closed = tmp_path / "closed"
    closed.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    if not os.access(closed, os.W_OK):  # root may write anywhere
        assert str(closed) in refusal("predict", run, pool, "--output", closed / "p.csv")


def test_tables_for_spreadsheets(run: Path, pool: Path, tmp_path: Path) -> None:
    output = tmp_path / "p.tsv"
    assert call("predict", run, pool / "u_000.png", "--output", output).returncode == 0
    header, row = output.read_text("utf-8").splitlines()
    assert header == "path\tclass\tconfidence\terror"
    assert row.startswith(f"{pool}/u_000.png\t")


def test_links_form_no_cycle(pool: Path, tmp_path: Path) -> None:
    (pool / "loop").symlink_to("..")
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(pool / "u_000.png", other / "o.png")
    (pool / "linked").symlink_to(other)
    listing = list_images([str(pool)])
    assert f"{pool}/linked/o.png" in listing.names
    assert len(listing.names) == 13
    assert listing.notes == [f"links not followed (they lead in a circle): {pool}/loop"]


def test_python_writes_the_table_of_the_command(run: Path, pool: Path, tmp_path: Path) -> None:
    (pool / "u_003.png").write_bytes(b"no image")
    (pool / "notes.md").touch()
    written = predict_table(run, pool, tmp_path / "p.csv", probabilities=True)
    assert (written.images, written.unreadable, len(written.notes)) == (12, 1, 1)
    result = call("predict", run, pool, "--probabilities")
    assert (tmp_path / "p.csv").read_text("utf-8") == result.stdout
