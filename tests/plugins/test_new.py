"""`ssl-toolkit new`: each kind of project works as it stands, or nothing is written."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from in_process import call, refusal

from ssl_toolkit import registry, scaffold
from ssl_toolkit.testing import rules

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = {f"my_{kind}": kind for kind in scaffold.KINDS}


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of each kind."""
    folder = tmp_path_factory.mktemp("new") / "projects"  # which `new` makes
    for name, kind in NAMES.items():
        result = call("new", kind, name, "--path", folder)
        assert result.returncode == 0, result.stderr
        assert f"next: pip install -e {folder / name}; ssl-toolkit check {name}\n" in result.stdout
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_there_is_a_template_for_every_kind_of_plugin() -> None:
    assert [f"{kind}s" for kind in scaffold.KINDS] == sorted(registry.GROUPS)


@pytest.mark.parametrize("name", NAMES)
def test_a_project_is_complete(projects: Path, name: str) -> None:
    folder = projects / name
    assert files(folder) == {
        f"{name}.py",
        f"tests/test_{name}.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        ".gitignore",
        ".github/workflows/tests.yaml",
    }
    for path in files(folder):
        text = (folder / path).read_text(encoding="utf-8")
        assert text.endswith("\n")
        assert "{%" not in text
        assert "{{" not in text.replace("${{ matrix.python }}", "")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (entry,) = project["entry-points"].values()
    kind = NAMES[name]
    assert [*project["entry-points"]] == [f"ssl_toolkit.{kind}s"]
    assert entry == {name: f"{name}:My{kind.capitalize()}"}
    assert project["name"] == name.replace("_", "-")


def install(folder: Path, site: Path) -> None:
    """Leave what pip leaves: metadata with the entry point."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    metadata = site / f"{folder.name}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


@pytest.mark.slow
def test_the_tests_of_all_projects_pass(projects: Path, tmp_path: Path) -> None:
    """The contract kit on every rule, and the tests beside it, as their authors would run them."""
    for name in NAMES:
        install(projects / name, tmp_path / "site")
    paths = [str(tmp_path / "site"), *(str(projects / name) for name in NAMES)]
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("--rootdir", projects, "-c", projects / "my_algorithm" / "pyproject.toml"),
            *(projects / name for name in NAMES),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    own = sum(path.read_text("utf-8").count("def test_") - 1 for path in projects.rglob("test_*"))
    count = sum(len(rules(kind)) for kind in NAMES.values()) + own
    assert f"\n{count} passed in " in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="ruff is in the extra dev")
def test_the_projects_are_clean_for_ruff(projects: Path) -> None:
    for arguments in (["check"], ["format", "--check", "--diff"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "--no-cache", projects],
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is in the extra dev")
def test_the_projects_are_clean_for_mypy(projects: Path) -> None:
    """With the settings and the cache of this repository, which are as strict."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *sorted(projects.glob("*/**/*.py"))],
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- licenses, names of classes -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("license", "says"),
    [
        ("MIT", "Permission is hereby granted, free of charge"),
        ("Apache-2.0", "END OF TERMS AND CONDITIONS"),
        ("BSD-3-Clause", "3. Neither the name of the copyright holder"),
    ],
)
def test_a_license_is_chosen(tmp_path: Path, license: str, says: str) -> None:
    arguments = ["--license", license, "--author", "Ada Lovelace"]
    assert call("new", "logger", "mine", "--path", tmp_path, *arguments).returncode == 0
    text = (tmp_path / "mine" / "LICENSE").read_text(encoding="utf-8")
    assert says in text
    assert ("Ada Lovelace" in text) == (license != "Apache-2.0")
    project = tomllib.loads((tmp_path / "mine" / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["license"] == license
    assert f"{license}, see" in (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")


def test_a_missing_license_is_stated(tmp_path: Path) -> None:
    assert call("new", "logger", "mine", "--path", tmp_path, "--license", "none").returncode == 0
    assert "LICENSE" not in files(tmp_path / "mine")
    project = tomllib.loads((tmp_path / "mine" / "pyproject.toml").read_text("utf-8"))["project"]
    assert not {"license", "license-files"} & project.keys()
    assert "None yet: without a license" in (tmp_path / "mine" / "README.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [("my_method", "MyMethod"), ("v2", "V2"), ("loss", "LossAlgorithm"), ("true", "TrueAlgorithm")],
)
def test_a_class_name_shadows_no_key(name: str, expected: str) -> None:
    assert scaffold.class_name("algorithm", name) == expected


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("algorithm", "My-Method", "use lower-case letters"),
        ("algorithm", "2nd", "use lower-case letters"),
        ("algorithm", "my__method", "use lower-case letters"),
        ("algorithm", "../escaped", "use lower-case letters"),
        ("algorithm", "fixmatch", "is built in"),
        ("launcher", "local", "is built in"),
        ("algorithm", "seed", "is a key of the configuration"),
        ("algorithm", "class", "is a word of Python's"),
        ("algorithm", "torch", "is a module that exists"),
        ("logger", "json", "is a module that exists"),
        ("algorithm", "m" * 33, "is longer than 32"),
    ],
)
def test_a_name_that_cannot_work_is_refused(
    tmp_path: Path, kind: str, name: str, says: str
) -> None:
    message = refusal("new", kind, name, "--path", tmp_path / "here")
    assert says in message
    assert name in message
    assert len(message.splitlines()) == 1
    assert [*tmp_path.iterdir()] == []


def test_a_name_can_be_used_for_two_kinds(tmp_path: Path) -> None:
    assert call("new", "augmenter", "seed", "--path", tmp_path).returncode == 0


def test_existing_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    message = refusal("new", "logger", "mine", "--path", tmp_path)
    assert f"{tmp_path / 'mine'}: exists already" in message
    assert [*tmp_path.rglob("*")] == [tmp_path / "mine"]
    (tmp_path / "file").write_text("kept")
    assert "can't be made" in refusal("new", "logger", "mine", "--path", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


def test_an_unknown_kind_is_reported(tmp_path: Path) -> None:
    assert "'algorithm', 'augmenter'" in refusal("new", "method", "mine", "--path", tmp_path)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path.write_text

    def write(self: Path, *arguments: object, **named: object) -> int:
        if self.name == "README.md":
            raise OSError(28, "No space left on device", str(self))
        return whole(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", write)
    assert "No space left on device" in refusal("new", "logger", "mine", "--path", tmp_path)
    assert [*tmp_path.iterdir()] == []
