"""One process at a time in the folder of a run."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ssl_toolkit import ModelError
from ssl_toolkit.config.settings import Settings
from ssl_toolkit.locking import LOCK, clear, hold
from ssl_toolkit.runs.folder import Output


def write_lock(folder: Path, pid: int, host: str) -> None:
    (folder / ".lock").write_text(f"process {pid} on host {host} since then")


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def without_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_folder_in_use_is_refused_with_process_and_host(tmp_path: Path) -> None:
    with hold(tmp_path):
        with pytest.raises(ModelError) as refused:
            hold(tmp_path)
        for part in (str(tmp_path), f"process {os.getpid()}", f"host {socket.gethostname()}"):
            assert part in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    hold(tmp_path).close()


def test_another_process_holds_the_lock_too(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ssl_toolkit.locking import hold\n"
        f"lock = hold(Path({str(tmp_path)!r})); print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(ModelError, match=f"process {process.pid} on host"):
        hold(tmp_path)
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert (tmp_path / ".lock").exists()  # what a killed process leaves behind
    with hold(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()


@pytest.mark.parametrize("host", ["elsewhere", socket.gethostname()])
def test_system_locks_decide_if_available(tmp_path: Path, host: str) -> None:
    write_lock(tmp_path, 1, host)
    with hold(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()


@pytest.mark.usefixtures("without_flock")
def test_without_system_locks_the_file_decides(tmp_path: Path) -> None:
    write_lock(tmp_path, dead_process(), socket.gethostname())
    lock = hold(tmp_path)
    with pytest.raises(ModelError, match=f"process {os.getpid()}"):
        hold(tmp_path)
    lock.close()
    write_lock(tmp_path, dead_process(), "elsewhere")
    with pytest.raises(ModelError, match=r"on host elsewhere.*delete .*\.lock"):
        hold(tmp_path)
    (tmp_path / ".lock").write_text("")  # cut by a full disk: it says nothing
    hold(tmp_path).close()


def test_only_one_of_many_gets_it(tmp_path: Path) -> None:
    inside, most, refused = 0, 0, 0
    counting = threading.Lock()

    def work() -> None:
        nonlocal inside, most, refused
        for _ in range(300):
            try:
                lock = hold(tmp_path)
            except ModelError:
                with counting:
                    refused += 1
                continue
            with counting:
                inside += 1
                most = max(most, inside)
            with counting:
                inside -= 1
            lock.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert refused < 4 * 300


@pytest.mark.parametrize("overwrite", [False, True])
def test_one_of_two_simultaneous_runs_wins(tmp_path: Path, overwrite: bool) -> None:
    settings = Settings(output=str(tmp_path / "run"))
    with Output(settings, overwrite=overwrite) as first:
        with Output(settings, overwrite=overwrite) as second:
            # Both found no folder; the second reads its data faster.
            folder = second.create(settings)
            folder.summary.write_text("of the second")
            with pytest.raises(ModelError, match="the folder exists"):
                first.create(settings)
            assert folder.summary.read_text() == "of the second"
        with pytest.raises(ModelError, match="the folder exists"):
            first.create(settings)  # although the other one has ended by now
    assert folder.summary.read_text() == "of the second"


def test_one_of_two_simultaneous_overwrites_wins(tmp_path: Path) -> None:
    settings = Settings(output=str(tmp_path / "run"))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "summary.json").write_text('{"status": "completed"}')
    (folder / "own.txt").write_text("of the old run")
    with Output(settings, overwrite=True) as first:
        with pytest.raises(ModelError, match="in use by process"):
            Output(settings, overwrite=True)
        assert (folder / "own.txt").exists()  # nothing is removed before there is something new
        first.create(settings)
        assert [entry.name for entry in folder.iterdir()] == [".lock"]
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_not_a_run_is_not_overwritten(tmp_path: Path) -> None:
    settings = Settings(output=str(tmp_path / "thesis"))
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(ModelError, match="not the folder of a run"):
        Output(settings, overwrite=True)
    assert [entry.name for entry in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]


def test_a_start_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    settings = Settings(output=str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    for name in (".lock", "config.yaml", ".record.7.partial.json", "log.txt"):
        (tmp_path / "run" / name).write_text("")
    with pytest.raises(ModelError, match="the folder exists"):
        Output(settings, overwrite=False)
    with Output(settings, overwrite=False, restart=True) as output:
        output.create(settings)
        assert [entry.name for entry in (tmp_path / "run").iterdir()] == [".lock"]


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="gone: folder not found"):
        hold(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_a_folder_is_known_until_it_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "stages.yaml", "z"):
        (tmp_path / name).touch()
    removed: list[str] = []
    monkeypatch.setattr(Path, "unlink", lambda path: removed.append(path.name))
    clear(tmp_path, last="stages.yaml")
    assert removed[-1] == "stages.yaml"
    assert len(removed) == 3


def test_clearing_keeps_the_lock_and_what_links_point_to(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    for path in (outside, folder / "deep" / "er"):
        path.mkdir(parents=True)
        (path / "file").write_text("content")
    (folder / "link").symlink_to(outside, target_is_directory=True)
    with hold(folder):
        clear(folder)
        assert [path.name for path in folder.iterdir()] == [LOCK]
    assert (outside / "file").read_text() == "content"
