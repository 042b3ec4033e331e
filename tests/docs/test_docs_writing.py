"""The pages on plugins of one's own: every block runs, in the order of its page."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import site
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import call

from ssl_toolkit import registry
from ssl_toolkit.testing import ContractError, RuleResult

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in; what was imported, installed or registered from there goes again."""
    monkeypatch.chdir(tmp_path)
    modules, path, registered = set(sys.modules), [*sys.path], {**registry._registered}
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        place = getattr(sys.modules[name], "__file__", None)
        if place and Path(place).is_relative_to(tmp_path):
            del sys.modules[name]
    registry._registered.clear()  # a name of the page may be that of another test
    registry._registered.update(registered)


def pip(*arguments: str) -> None:
    """As typed, with the build tools that are here, and into a folder of its own on the path."""
    command, *rest = arguments
    target = Path("site").absolute()
    if command == "install":
        rest = ["--no-deps", "--target", str(target), *rest]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", command, "--no-build-isolation", *rest],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if command == "install":
        site.addsitedir(str(target))  # reads the .pth of an editable installation
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(target), *(p.read_text().strip() for p in target.glob("*.pth"))]
        )


def toolkit(*arguments: str) -> None:
    done = call(*arguments)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def run_pytest(*arguments: str) -> None:
    alone = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", arguments[0]]
    assert pytest.main([*alone, *arguments]) == 0


COMMANDS: dict[str, Callable[..., None]] = {
    "pip": pip,
    "ssl-toolkit": toolkit,
    "pytest": run_pytest,
}


def follow(page: Path, folder: Path) -> dict[str, int]:
    """Do what a page says; how many blocks of each kind there were."""
    counts: dict[str, int] = {}
    code = ""
    for file, kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        counts[kind] = counts.get(kind, 0) + 1
        if file:
            assert (folder / file).is_file(), f"{file} is no file that `new` has written"
            (folder / file).write_text(text, encoding="utf-8")
            sys.modules.pop(Path(file).stem, None)
        elif kind == "bash":
            for line in text.splitlines():
                name, *arguments = shlex.split(line, comments=True)
                COMMANDS[name](*arguments)
        elif kind == "python":
            code += text
        else:
            assert kind == "text"
    # As a script: classes of a module can be pickled, and their source be found.
    script = folder / "page.py"
    script.write_text(code, encoding="utf-8")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    importlib.import_module("page")
    return counts


@pytest.mark.slow
def test_an_algorithm_from_an_empty_folder_to_a_wheel(
    outside: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")  # put back when the test ends
    page = DOCS / "plugins/tutorial.md"
    assert follow(page, outside) == {"bash": 4, "text": 2, "python": 2}
    printed = capfd.readouterr().out
    assert re.search(r"^  my_method +my-method 0\.1\.0$", printed, re.MULTILINE)
    assert re.search(r"^\d+ passed in ", printed, re.MULTILINE)
    rules = re.search(r"^(\d+) of (\d+) rules passed", printed, re.MULTILINE)
    assert rules is not None
    assert rules[1] == rules[2]
    assert int(rules[1]) > 30

    metrics = (outside / "runs/first/metrics.jsonl").read_text(encoding="utf-8")
    for key in ("train.loss.pseudo", "threshold", "train.coverage", "train.pseudo_label_accuracy"):
        assert f"{key}" in metrics
    assert (outside / "runs/both/report.html").is_file()
    with zipfile.ZipFile(outside / "dist/my_method-0.1.0-py3-none-any.whl") as wheel:
        assert "my_method.py" in wheel.namelist()
        assert b"FreeMatch" in wheel.read("my_method.py")

    shown = re.search(r"^my_method/\n((?:  \S+\n)+)", page.read_text("utf-8"), re.MULTILINE)
    assert shown is not None
    assert call("new", "algorithm", "other_one").returncode == 0
    made = {
        path.relative_to(outside / "other_one").as_posix().replace("other_one", "my_method")
        for path in (outside / "other_one").rglob("*")
        if path.is_file()
    }
    assert {*shown[1].split()} == made


def test_every_part_of_the_interface(outside: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = DOCS / "plugins/writing-an-algorithm.md"
    assert follow(page, outside) == {"text": 2, "python": 11}
    assert capfd.readouterr().out.splitlines()[-1] == "completed"


def test_the_other_plugins_keep_their_contracts_and_work_together(
    outside: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = DOCS / "plugins/writing-other-plugins.md"
    assert follow(page, outside) == {"bash": 1, "python": 10}
    text = page.read_text(encoding="utf-8")
    classes = ("Noisy", "Learning", "Shallow", "Stripes", "Best", "OneByOne")
    for name in classes:
        assert f"testing.check_plugin({name})" in text
    for group in ("augmenter", "backbone", "dataset", "logger", "launcher"):
        assert f"@ssl_toolkit.register_{group}(" in text
    printed = capfd.readouterr().out
    assert "labeled=8 unlabeled=136 validation=16 test=40" in printed
    assert re.search(r"^completed, best \d\.\d\d$", printed, re.MULTILINE)
    record = (outside / "runs/own/record.json").read_text(encoding="utf-8")
    for plugin in ("augmenters: noisy", "backbones: shallow", "datasets: stripes"):
        assert f'"{plugin}": "(this session)' in record
    assert {path.name for path in (outside / "my_augmenter").iterdir()} >= {"my_augmenter.py"}


def test_the_blocks_on_the_kit_check_a_method(
    outside: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("new", "algorithm", "my_method").returncode == 0
    sys.path.insert(0, str(outside / "my_method"))
    importlib.invalidate_caches()
    page = (DOCS / "plugins/contract-kit.md").read_text(encoding="utf-8")
    parametrized, whole, results, expected = (b[2] for b in BLOCK.findall(page) if b[1] == "python")
    names: dict[str, Any] = {}
    exec(parametrized, names)
    (mark,) = names["test_contract"].pytestmark
    assert len(mark.args[1]) > 30
    exec(whole, names)
    exec(results, names)
    output = capfd.readouterr().out.splitlines()
    assert len(output) == len(mark.args[1])
    assert all(re.fullmatch(r"\w+ passed \d+\.\d\d s", line) for line in output)
    with pytest.raises(ContractError, match=r"uses_labels.*\n.*but was expected to fail"):
        exec(expected, names)
    fields = re.findall(r"^- `(\w+)(?:\(\))?`: ", page, re.MULTILINE)
    assert {*RuleResult.__dataclass_fields__, "passed", "explain"} == {*fields}
