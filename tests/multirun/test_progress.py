"""The states of the runs of a comparison, on a terminal and in a file."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace as Summary

import pytest
from rich.console import Console as RichConsole

from ssl_toolkit.comparisons.schema import _OF_SPLITS, ComparedRun
from ssl_toolkit.console import Console
from ssl_toolkit.multirun.progress import RunStates, State, state_of

TEST = Summary(**dict.fromkeys(_OF_SPLITS["test"], 0.5), uneven=False)


def console_of(*, terminal: bool, height: int = 25) -> Console:
    console = Console()
    console.rich = RichConsole(
        file=io.StringIO(), force_terminal=terminal, width=80, height=height, highlight=False
    )
    return console


def text_of(console: Console) -> str:
    assert isinstance(console.rich.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.rich.file.getvalue())


def make(folder: Path, names: str, console: Console, ended: str = "") -> RunStates:
    done = {name: State("done", "test accuracy 0.9500, 3 s") for name in ended}
    return RunStates({name: (folder / name, 100) for name in names}, done, console)


def write_step(folder: Path, step: int) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(f'{{"format": 1, "step": {step}}}\n')


def test_states_follow_the_files_of_the_runs(tmp_path: Path) -> None:
    write_step(tmp_path / "b", 40)  # of a run that was stopped before this comparison started
    states = make(tmp_path, "abc", console_of(terminal=False), ended="c")
    assert [state.word for state in states.states().values()] == ["waiting", "waiting", "done"]
    write_step(tmp_path / "b", 50)
    assert states.states()["b"] == State("running", "step 50/100")
    states.end("b", State("failed", "CUDA out of memory"))
    assert states.states()["b"] == State("failed", "CUDA out of memory")


def test_a_terminal_shows_a_table_that_stays(tmp_path: Path) -> None:
    console = console_of(terminal=True)
    with make(tmp_path, "abcd", console, ended="c").shown() as states:
        write_step(tmp_path / "b", 50)
        states.end("a", State("done", "test accuracy 0.9100, 3 s"))
        states.end("d", State("failed", "the loss is not finite"))
    text = text_of(console)
    for cells in (
        ("a", "done", "test accuracy 0.9100, 3 s"),
        ("b", "running", "step 50/100"),
        ("c", "done", "test accuracy 0.9500, 3 s"),
        ("d", "failed", "the loss is not finite"),
    ):
        assert re.search("│ *".join(f" {cell} *" for cell in cells), text), cells
    assert "2 done, 1 running, 1 failed" in text
    assert "warning: d: failed: the loss is not finite" in text
    assert max(map(len, re.split(r"[\r\n]+", text))) <= 80


def test_a_table_has_one_row_per_run(tmp_path: Path) -> None:
    console = console_of(terminal=False)
    with make(tmp_path, "abcd", console, ended="c").shown() as states:
        states.end("a", State("done", "test accuracy 0.9100, 3 s"))
        states.end("b", State("stopped", "by SIGINT"))
        states.end("d", State("failed", "the loss is not finite"))
    lines = text_of(console).splitlines()
    assert lines[:2] == ["1 of 4 runs are finished already", "a: test accuracy 0.9100, 3 s"]
    assert re.fullmatch("2 of 4 runs ended, about .* s left", lines[2])
    assert lines[3] == "b: stopped by SIGINT"
    assert lines[-1] == "warning: d: failed: the loss is not finite"


def test_a_small_screen_shows_the_runs_that_matter(tmp_path: Path) -> None:
    console = console_of(terminal=True, height=9)
    states = make(tmp_path, "abcdefgh", console, ended="abcd")
    write_step(tmp_path / "g", 1)
    assert states._shown(states.states()) == ["e", "f", "g"]
    for name in "efgh":
        states.end(name, State("done"))
    assert states._shown(states.states()) == [*"abcdefgh"], "the last table is whole"


@pytest.mark.parametrize(
    ("status", "summary", "failure", "state"),
    [
        ("completed", Summary(validation=None, test=TEST, multilabel=None, is_tested=True,
                              recipe=None, steps=1, convergence_step=None,
                              images_per_second=1.0, seconds=61), "",
         State("done", "test accuracy 0.5000, 1 min 1 s")),
        ("completed", Summary(is_tested=False, seconds=2), "", State("done", "no test split, 2 s")),
        ("interrupted", None, "", State("stopped", "by SIGTERM")),
        ("failed", None, "exit status 9", State("failed", "exit status 9")),
    ],
)  # fmt: skip
def test_the_state_of_a_run_that_ended(
    status: str, summary: Summary | None, failure: str, state: State, tmp_path: Path
) -> None:
    run = ComparedRun.model_construct(
        row="a", seed=0, folder=tmp_path, status=status, reason="SIGTERM", summary=summary
    )
    assert state_of(run, failure) == state
