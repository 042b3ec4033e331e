"""Runs that end before their first checkpoint start again from the same weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from in_process import call, refusal
from pretrained_runs import flags, make_images, make_weights
from run_files import hashes, metrics, summary, weights

from ssl_toolkit.engine.trainer import Trainer
from ssl_toolkit.runs import execute, resume, train

ALGO = ("--algo", "simple", "--log-every", "1")


class Killed(BaseException):
    pass


def kill(*_: object) -> None:
    raise Killed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from a file of weights, and one that was killed after its summary was written."""
    folder = tmp_path_factory.mktemp("first")
    make_images(folder / "images")
    run = ("run", *flags(folder), *ALGO)
    assert call(*run, "--output", folder / "whole").returncode == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "finish", kill)
        with pytest.raises(Killed):
            call(*run, "--output", folder / "killed")
    assert summary(folder / "killed")["status"] == "running"
    return folder


@pytest.fixture
def killed(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "killed", tmp_path / "run"))


def same_end(run: Path, whole: Path) -> None:
    assert metrics(run) == metrics(whole)
    ours, theirs = weights(run), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("resumed", [True, False])
def test_a_killed_run_starts_from_its_weights(resumed: bool, made: Path, killed: Path) -> None:
    again = ("run", *flags(made), *ALGO, "--output", killed, "--continue")
    assert call(*(("resume", killed) if resumed else again)).returncode == 0
    same_end(killed, made / "whole")


@pytest.mark.parametrize(
    ("old", "new"),
    [("\nlr: ", "\nlr: 1"), ("\n  confidence_threshold: ", "\n  confidence_threshold: 0.5 #"),
     ("\nseed: 0", "\nseed: 1")],
)  # fmt: skip
def test_an_edited_configuration_is_refused(old: str, new: str, killed: Path) -> None:
    file = killed / "config.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    before = hashes(killed)
    message = refusal("resume", killed)
    assert f"{file} was changed since the run started: its hash is not that of" in message
    assert len(message.splitlines()) == 1
    assert hashes(killed) == before
    file.write_text(text.replace("\nworkers: 0", "\nworkers: 1"))  # may be changed
    assert call("resume", killed, "--steps", "3").returncode == 0
    assert summary(killed)["steps"] == 3
    assert call("check-run", killed).returncode == 0


def test_a_kill_between_the_files_of_a_change(killed: Path) -> None:
    file = killed / "config.yaml"
    text = file.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "finish", lambda *_: pytest.fail("not reached"))
        patch.setattr(resume.yaml, "write", kill)
        with pytest.raises(Killed):
            call("resume", killed, "--steps", "3")
    assert file.read_text() == text
    assert call("resume", killed, "--steps", "3").returncode == 0
    assert call("check-run", killed).returncode == 0


def test_a_full_disk_at_the_first_checkpoint(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(execute, "save_checkpoint", full)
        assert "No space left" in call("run", *flags(made), *ALGO, "--output", run).stderr
    assert summary(run)["status"] == "failed"
    assert call("resume", run).returncode == 0
    same_end(run, made / "whole")


def test_a_kill_after_the_first_checkpoint(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "fit", kill)
        with pytest.raises(Killed):
            call("run", *flags(made), *ALGO, "--output", run)
    assert (run / "checkpoints" / "last.pt").exists()
    assert call("resume", run).returncode == 0
    same_end(run, made / "whole")


def test_other_weights_are_refused(made: Path, killed: Path, tmp_path: Path) -> None:
    file, before = make_weights(made), hashes(killed)
    content = file.read_bytes()
    try:
        torch.manual_seed(1)
        safetensors.torch.save_file(timm.create_model(file.stem).state_dict(), file)
        message = refusal("resume", killed)
        assert f"its initial weights can't be restored: --weights {file} or a package" in message
        assert len(message.splitlines()) == 1
        file.unlink()
        assert str(file) in refusal("resume", killed)
    finally:
        file.write_bytes(content)
    assert hashes(killed) == before
