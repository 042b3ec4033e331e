"""`file_table` gives the data sets of third parties what the toolkit's own readers have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_images import put

from ssl_toolkit import DataError, Dataset, ImageTable, file_table, register_dataset, registry
from ssl_toolkit.config.loading import Layer, validate
from ssl_toolkit.data.load import load_table


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets that a test registers are gone after it."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


class Mine(Dataset):
    """Four files."""

    def load(self, root: Path | None, *, download: bool = False) -> ImageTable:
        assert root is not None
        files = [(f"images/{n}.png", n % 2) for n in range(4)]
        return file_table(
            root, ["a", "b"], [(key, y, "test" if y else "pool") for key, y in files], ["a note"]
        )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", str(tmp_path / "cache"))
    for number in range(4):
        put(tmp_path / "mine" / "images" / f"{number}.png", 10 * number)
    return tmp_path / "mine"


def load(root: Path, **more: str) -> ImageTable:
    register_dataset("mine")(Mine)
    keys = {"dataset": "mine", "root": str(root), "image_size": 4} | more
    return load_table(validate([Layer("test", keys)]).settings)


def test_files_are_verified_and_cached(root: Path, tmp_path: Path) -> None:
    table = load(root)
    assert list(table.keys) == [f"images/{n}.png" for n in range(4)]
    assert table.splits.tolist() == ["pool", "test"] * 2
    assert table.read(np.arange(4), 4)[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
    assert "a note" in table.notes
    assert any((tmp_path / "cache").rglob("*"))
    (root / "images" / "2.png").write_bytes(b"oops")
    with pytest.raises(DataError, match=r"2\.png: not an image"):
        load(root)
    assert len(load(root, on_bad_image="skip").keys) == 3


def test_files_outside_the_folder_are_refused(root: Path, tmp_path: Path) -> None:
    put(tmp_path / "secret.png")
    (root / "images" / "link.png").symlink_to(tmp_path / "secret.png")
    files = ["images/link.png", "../secret.png", str(tmp_path / "secret.png"), "images/0.png"]
    with pytest.raises(DataError) as caught:
        file_table(root, ["a"], [(key, 0, "pool") for key in files])
    assert len(caught.value.messages) == 3
    assert "leads by a link out of" in caught.value.messages[0]
    assert "not a path below" in caught.value.messages[1]
    sources = [f"list.txt, line {number}" for number in range(1, 5)]
    with pytest.raises(DataError) as caught:
        file_table(root, ["a"], [(key, 0, "pool") for key in files], sources=sources)
    starts = [message.split(": ")[0] for message in caught.value.messages]
    assert starts == sources[:3]
