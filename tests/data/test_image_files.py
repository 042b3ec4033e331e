"""A data set of a third party that gives the paths of its images."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ssl_toolkit import (
    Dataset,
    DatasetDefaults,
    ImageTable,
    register_dataset,
    registry,
    testing,
)
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.data.cache import cache_folder
from ssl_toolkit.data.images.files import read_images
from ssl_toolkit.data.load import load_table
from ssl_toolkit.data.readers.image_files import files_of, open_files
from ssl_toolkit.data.splits.duplicates import same_images
from ssl_toolkit.engine.experiment import prepare
from ssl_toolkit.errors import ConfigError, DataError
from ssl_toolkit.reports.dataset import _facts

COUNT = 40


class Paths(Dataset):
    """Image files in one folder."""

    defaults = DatasetDefaults(image_size=8, backbone="wrn_10_1", labels_per_class=2)
    folder: Path

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        names = [f"{number:02d}.png" for number in range(COUNT)]
        return ImageTable(
            classes=("a", "b"),
            keys=names,
            labels=np.arange(COUNT, dtype=np.int64) % 2,
            splits=np.array(["pool"] * 30 + ["test"] * 10),
            files=[str(self.folder / name) for name in names],
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "_registered", registry._registered.copy())
    register_dataset("paths")(Paths)
    Paths.folder = tmp_path / "images"
    Paths.folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        levels = rng.integers(0, 256, (12, 9, 3)).astype(np.uint8)
        Image.fromarray(levels).save(Paths.folder / f"{number:02d}.png")
    return Paths.folder


def settings(**keys: object):
    base = {"algo": "fixmatch", "dataset": "paths", "image_size": 8, "device": "cpu", "steps": 2}
    return validate([Layer("test", {**base, **keys})])


def test_files_are_cached_and_hashed(folder):
    shutil.copy(folder / "00.png", folder / "39.png")
    table = load_table(settings(fit="pad").settings)
    assert len([*cache_folder("images").glob("[!.]*")]) == 1
    paths = [folder / key for key in table.keys]
    rows = np.arange(COUNT)
    assert (table.read(rows, 8) == read_images(paths, 8, fit="pad")).all()
    assert table.digest(3) == hashlib.sha256(paths[3].read_bytes()).hexdigest()
    assert [group.tolist() for group in same_images(table, rows)] == [[0, 39]]
    assert _facts(Path("x"), table, 8)["modes"] == {"RGB": COUNT}


def test_unreadable_files_are_reported_or_dropped(folder):
    (folder / "07.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"07\.png: empty file"):
        load_table(settings().settings)
    table = load_table(settings(on_bad_image="skip").settings)
    assert len(table.keys) == COUNT - 1
    assert "07.png" not in [*table.keys]
    files = files_of(table)
    assert [Path(path).name for path in files] == [*table.keys]
    assert files.dropped == ((str(folder / "07.png"), "empty file"),)
    rows = np.array([6, 7, 38])
    expected = read_images([folder / table.keys[row] for row in rows], 8)
    assert (table.read(rows, 8) == expected).all()
    digests = files.digests(rows)
    assert [bytes(digest).hex() for digest in digests] == [table.digest(row) for row in rows]
    assert len([*cache_folder("images").glob("[!.]*")]) == 1  # of all files, as at the next start


def test_a_default_size_can_be_a_pair_of_sides(folder, monkeypatch):
    monkeypatch.setattr(Paths, "defaults", replace(Paths.defaults, image_size=(8, 12)))
    testing.check_plugin(Paths)
    experiment = prepare(settings(image_size=None))
    assert experiment.table.read(np.array([3]), (8, 12)).shape == (1, 8, 12, 3)
    assert experiment.config.settings.image_size == (8, 12)
    assert experiment.trainer.fit() is not None
    table = open_files(Paths().load(None))
    arrays = ImageTable(table.classes, table.keys, table.labels, table.splits, table.read)
    monkeypatch.setattr(Paths, "load", lambda self, root, download=False: arrays)
    with pytest.raises(testing.ContractError, match="a pair of sides needs a table with `files`"):
        testing.check_plugin(Paths)


def test_files_can_be_streamed(folder):
    config = settings(stream_buffer=4, labels_per_class=2, batch_size=2)
    experiment = prepare(config)
    assert len(experiment.split.unlabeled)
    assert experiment.trainer.fit() is not None


def test_arrays_cannot_be_streamed(folder, monkeypatch):
    table = open_files(Paths().load(None))
    arrays = ImageTable(table.classes, table.keys, table.labels, table.splits, table.read)
    monkeypatch.setattr(Paths, "load", lambda self, root, download=False: arrays)
    with pytest.raises(ConfigError, match="neither shards nor files"):
        prepare(settings(stream_buffer=4))


def test_the_contract_covers_files(folder):
    testing.check_plugin(Paths)


def test_a_table_without_images_is_reported():
    table = ImageTable(("a", "b"), ("x",), np.zeros(1, np.int64), np.array(["pool"]))
    with pytest.raises(DataError, match="neither `read` nor `files`"):
        table.read(np.arange(1), 8)
