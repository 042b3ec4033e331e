"""Checkpoints that are cut, garbled, refused, or written while the process is killed."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_toolkit import ModelError
from ssl_toolkit.engine.checkpoints import (
    kept_checkpoints,
    load_checkpoint,
    load_newest,
    save_checkpoint,
    verify_checksum,
)
from ssl_toolkit.files import append_line, write_text


def save(path: Path, step: int, keep: int = 2) -> None:
    weights = torch.arange(5000, dtype=torch.float32) + step
    save_checkpoint(path, {"step": step, "model": {"w": weights}}, keep=keep)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_the_newest_checkpoints_are_kept(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "last.pt"
    for step in range(6):
        save(path, step, keep)
        steps = [load_checkpoint(kept)["step"] for kept in kept_checkpoints(path)]
        assert steps == list(range(step, max(-1, step - keep), -1))
    assert names(tmp_path) == sorted(["last.pt", *(f"last-{k}.pt" for k in range(1, keep))])


def test_torch_opens_the_file_and_the_checksum_fits(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save(path, 3)
    assert torch.load(path, weights_only=True)["step"] == 3
    assert verify_checksum(path) is True


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_truncated_checkpoint_is_reported_and_the_previous_one_is_used(
    tmp_path: Path, share: float
) -> None:
    path = tmp_path / "last.pt"
    save(path, 1)
    save(path, 2)
    cut(path, int(share * path.stat().st_size))
    with pytest.raises(ModelError, match=r"last\.pt: damaged"):
        load_checkpoint(path)
    state, used, warning = load_newest(path)
    assert (state["step"], used.name) == (1, "last-1.pt")
    assert str(path) in warning
    assert str(used) in warning


def test_one_changed_bit_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save(path, 1)
    whole = path.read_bytes()
    for place in range(0, len(whole) - 71, 997):
        flip(path, place)
        with pytest.raises(ModelError, match="checksum does not fit"):
            load_checkpoint(path)
        path.write_bytes(whole)
    assert load_newest(path)[2] == ""


def test_if_all_images_are_unreadable_all_are_named(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    for step in range(3):
        save(path, step, keep=3)
    for kept in kept_checkpoints(path):
        cut(kept, 100)
    with pytest.raises(ModelError) as refused:
        load_newest(path)
    for name in ("last.pt", "last-1.pt", "last-2.pt"):
        assert f"{tmp_path / name}: damaged" in str(refused.value)


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it runs, no clearing up either."""


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("moment", range(8))
def test_a_killed_save_leaves_a_complete_checkpoint(
    tmp_path: Path, moment: int, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    for step in range(3):
        save(path, step, keep=3)
    calls = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            if calls >= moment:
                raise Killed
            calls += 1
            if real is link and not links:
                raise OSError(errno.EPERM, "no hard links here")
            return real(*arguments, **named)

        return call

    link = os.link
    for name in ("link", "replace", "fsync", "unlink"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    survived = True
    try:
        save(path, 3, keep=3)
    except Killed:
        survived = False
    monkeypatch.undo()
    state, used, warning = load_newest(path)
    assert state["step"] == 3 if survived else state["step"] in (2, 3)
    assert torch.equal(state["model"]["w"], torch.arange(5000) + float(state["step"]))
    assert used == path if links else True
    assert not warning if links else True
    # The one before is there as well, in case the newest one is damaged next.
    assert len({load_checkpoint(c)["step"] for c in kept_checkpoints(path) if c.exists()}) >= 2


def test_a_full_disk_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    save(path, 1)
    save(path, 2)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as refused:
        save(path, 3)
    assert refused.value.filename == str(path)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_a_line_is_appended_completely_or_not_at_all(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "metrics.jsonl"
    append_line(path, "one")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large") as refused:
            append_line(path, "x" * 500)
        with pytest.raises(OSError, match="File too large") as atomic:
            write_text(tmp_path / "summary.json", "x" * 500)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.filename == str(path)
    assert atomic.value.filename == str(tmp_path / "summary.json")
    assert path.read_text() == "one\n"
    assert names(tmp_path) == ["metrics.jsonl"]


class Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_a_file_that_would_run_code_is_refused_by_name(tmp_path: Path, form: str) -> None:
    path, mark = tmp_path / "last.pt", tmp_path / "ran"
    if form == "torch":
        save_checkpoint(path, {"step": 1, "model": Runs(mark)})
        save(tmp_path / "other.pt", 1)
        os.replace(tmp_path / "other.pt", tmp_path / "last-1.pt")
    else:
        path.write_bytes(pickle.dumps({"format": 1, "model": Runs(mark)}, protocol=2))
    for read in (load_checkpoint, load_newest):
        with pytest.raises(ModelError, match=r"last\.pt: refused, it names (posix|nt)\.system"):
            read(path)
    assert not mark.exists()
