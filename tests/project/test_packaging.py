"""What a user installs: the wheel, and a stranger's plugin beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = (
    "ssl_toolkit",
    *sorted(path.name for path in REPOSITORY.glob("plugins/*/ssl_toolkit_*")),
)


def build(source: Path, folder: Path) -> Path:
    """A wheel, made with the build tools of this environment: no network."""
    arguments = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source]
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Installation:
    """An environment of its own that holds the wheel, and a folder away from the repository."""

    environment: Path
    folder: Path

    @property
    def scripts(self) -> Path:
        return self.environment / ("Scripts" if os.name == "nt" else "bin")

    def pip(self, *arguments: object) -> None:
        where = ["--python", str(self.scripts / "python")]
        command = [sys.executable, "-m", "pip", "--quiet", *where, *map(str, arguments)]
        subprocess.run(command, check=True, cwd=self.folder)

    def python(self, code: str) -> str:
        return self._run(self.scripts / "python", "-I", "-c", code).stdout.strip()

    def toolkit(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self._run(self.scripts / "ssl-toolkit", *arguments)

    def _run(self, *command: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*map(str, command)],
            cwd=self.folder,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(REPOSITORY, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment)
    made = Installation(environment, tmp_path_factory.mktemp("elsewhere"))
    made.pip("install", "--no-deps", wheel)
    # Only now: torch and the others come from the running environment. Its folder stands after
    # the new one's own on the path, and the .pth of its editable ssl-toolkit is not read from
    # there, but the metadata of that second ssl-toolkit is seen.
    own = Path(made.python("import sysconfig; print(sysconfig.get_path('purelib'))"))
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (own / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return made


def test_the_wheel_contains_code_types_data_and_configurations(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (license,) = (name for name in names if name.endswith("/licenses/LICENSE"))
        assert b"Apache License" in archive.read(license)
    for package in PACKAGES:
        assert {f"{package}/__init__.py", f"{package}/py.typed"} <= names
    assert "ssl_toolkit/__init__.pyi" in names
    assert "ssl_toolkit_digits/digits.npz" in names
    scaffold = REPOSITORY / "ssl_toolkit" / "scaffold"
    templates = [*scaffold.glob("templates/*.j2"), *scaffold.glob("licenses/*.txt")]
    assert len(templates) == 15
    assert {path.relative_to(REPOSITORY).as_posix() for path in templates} <= names
    pages = (path.name for path in (REPOSITORY / "ssl_toolkit/reports/html/templates").iterdir())
    assert {f"ssl_toolkit/reports/html/templates/{name}" for name in pages} <= names
    static = (path.name for path in (REPOSITORY / "ssl_toolkit/labeling/page").iterdir())
    assert {f"ssl_toolkit/labeling/page/{name}" for name in static} <= names
    configurations = {path.relative_to(REPOSITORY) for path in REPOSITORY.glob("configs/**/*.yaml")}
    assert {f"ssl_toolkit/{path.as_posix()}" for path in configurations} <= names
    folders = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert folders == set(PACKAGES)  # neither tests nor a package called plugins


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="needs the list of tracked files")
def test_the_sdist_contains_the_repository_and_nothing_else(tmp_path: Path) -> None:
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=REPOSITORY, capture_output=True, encoding="utf-8", check=True)
    tracked = {
        name
        for name in listed.stdout.split("\0")
        if (REPOSITORY / name).is_file() and not re.match("docs/results/.*/predictions.npz", name)
    }
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist"]
    subprocess.run(
        [*command, "--directory", tmp_path], cwd=REPOSITORY, capture_output=True, check=True
    )
    (path,) = tmp_path.iterdir()
    with tarfile.open(path) as archive:
        files = {member.name for member in archive if member.isfile()}
    names = {name.partition("/")[2] for name in files}
    assert names - {"PKG-INFO"} == tracked
    assert path.stat().st_size < 6e6


def test_the_wheel_is_small_and_contains_no_junk(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    wrong = re.compile(r"(^|/)(tests?|docs|__pycache__|\.\w+)/|\.(pyc|pt|log|orig|ipynb)$")
    assert [name for name in names if wrong.search(name)] == []
    suffixes = {Path(name).suffix for name in names if ".dist-info/" not in name}
    kinds = {".py", ".pyi", ".typed", ".yaml", ".json", ".npz", ".md"}
    kinds |= {".j2", ".txt", ".css", ".html", ".js"}  # templates, licenses, pages
    assert suffixes - kinds == set()
    assert wheel.stat().st_size < 3e6


def test_the_installed_wheel_works_without_the_repository(installation: Installation) -> None:
    code = (
        "from ssl_toolkit.config.yaml import configs_dir; import ssl_toolkit_simple as s; "
        "print(configs_dir()); print(s.__file__)"
    )
    for place in installation.python(code).splitlines():
        assert Path(place).is_relative_to(installation.environment)

    listed = installation.toolkit("list")
    assert not listed.stderr  # no clash with the editable installation
    for name in ("simple", "mixmatch_enhanced", "randaugment", "wrn_28_2", "digits"):
        assert re.search(rf"^  {name} +ssl-toolkit \d", listed.stdout, re.MULTILINE)

    dry = installation.toolkit("run", "--dry-run", "--config", "quickstart.yaml")
    assert "algo: simple\n" in dry.stdout
    assert list(installation.folder.iterdir()) == []


def page_files() -> dict[str, str]:
    """The files of the minimal plugin: each a code block after its marker."""
    text = (REPOSITORY / "docs/plugins/minimal-plugin.md").read_text(encoding="utf-8")
    result = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return dict(result)


def test_a_third_party_plugin_is_installed_trained_and_removed(
    installation: Installation, tmp_path: Path
) -> None:
    """The minimal plugin, packaged by its own pyproject and installed as a stranger's would be."""
    project = tmp_path / "my-method"
    project.mkdir()
    files = page_files()
    assert files.keys() == {"my_method.py", "pyproject.toml"}
    for name, content in files.items():
        (project / name).write_text(content, encoding="utf-8")
    installation.pip("install", "--no-deps", build(project, tmp_path))

    rows = json.loads(installation.toolkit("list", "algorithms", "--verbose", "--json").stdout)
    (row,) = (row for row in rows if row["name"] == "my_method")
    assert (row["distribution"], row["version"], row["state"]) == ("my-method", "0.1.0", "ok")

    run = tmp_path / "run"
    options = ["--steps", 3, "--set", "my_method.threshold=0.5", "--output", run, "--quiet"]
    installation.toolkit("run", "--algo", "my_method", *options)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["algorithm"], summary["steps"]) == (
        "completed",
        "my_method",
        3,
    )
    record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    assert record["plugins"]["algorithms: my_method"].startswith("my-method 0.1.0 (code ")
    assert '"train.loss.pseudo"' in (run / "metrics.jsonl").read_text(encoding="utf-8")

    installation.pip("uninstall", "--yes", "my-method")
    assert "my_method" not in installation.toolkit("list", "algorithms").stdout


def test_a_new_project_is_listed_checked_and_uninstalled(installation: Installation) -> None:
    """What `new` writes, from the wheel's own templates, installed as a stranger would."""
    installation.toolkit("new", "algorithm", "checked_method")
    project = installation.folder / "checked_method"
    installation.pip("install", "--no-deps", build(project, project))
    assert re.search(
        r"^  checked_method +checked-method 0\.1\.0$",
        installation.toolkit("list", "algorithms").stdout,
        re.MULTILINE,
    )
    output = json.loads(installation.toolkit("check", "checked_method", "--json").stdout)
    assert output["kind"] == "algorithm"
    assert {rule["status"] for rule in output["rules"]} == {"passed"}
    assert len(output["rules"]) > 20
    installation.pip("uninstall", "--yes", "checked-method")
    shutil.rmtree(project)
    assert "checked_method" not in installation.toolkit("list", "algorithms").stdout


def test_a_new_project_trains_beside_the_built_ins(installation: Installation) -> None:
    installation.toolkit("new", "algorithm", "compared_method")
    project = installation.folder / "compared_method"
    installation.pip("install", "--no-deps", build(project, project))
    shared = ["--steps", 3, "--quiet"]
    run, both = installation.folder / "run", installation.folder / "both"
    installation.toolkit("run", "--algo", "compared_method", *shared, "--output", run)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["algorithm"]) == ("completed", "compared_method")

    algorithms = ["--algos", "compared_method,fixmatch", "--seeds", "0", "--threads", 1]
    installation.toolkit("compare", *algorithms, *shared, "--output", both)
    rows = json.loads((both / "comparison.json").read_text(encoding="utf-8"))["rows"]
    assert [row["name"] for row in rows] == ["compared_method", "fixmatch"]
    for row in rows:
        assert [member["status"] for member in row["runs"]] == ["completed"]
    installation.pip("uninstall", "--yes", "compared-method")
    for folder in (project, run, both):
        shutil.rmtree(folder)
