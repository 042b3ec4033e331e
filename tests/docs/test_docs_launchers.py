"""docs/launchers.md tells the options there are, and its launcher works as a package's."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from fake_jobs import SAVES, Stopping, alive, carry_out, make_job, meanwhile

from ssl_toolkit import registry
from ssl_toolkit.config.loading import check_options

PAGE = (Path(__file__).parents[2] / "docs" / "launchers.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(code)


@pytest.mark.parametrize("name", ["local", "ray", "slurm"])
def test_every_option_of_a_launcher_is_described(name: str) -> None:
    section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    described = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}
    assert described == {*registry.load("launchers", name).Config.model_fields}


def test_every_built_in_launcher_has_a_section() -> None:
    names = {entry.name for entry in registry.entries("launchers") if entry.built_in}
    assert names <= {*re.findall(r"^## (.+)$", PAGE, re.MULTILINE)}


def test_the_launcher_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ((group, points),) = tomllib.loads(block("toml"))["project"]["entry-points"].items()
    (tmp_path / "my_launchers.py").write_text(block("python"), encoding="utf-8")
    metadata = tmp_path / "my_launchers-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-launchers\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(tmp_path)

    plugin = registry.load("launchers", "one_by_one")
    launcher = plugin(check_options(plugin.Config, {"before": ["nice"]}, "launcher_options"))
    jobs = [make_job(tmp_path / "u0", "sys.exit(3)")]
    jobs += [make_job(tmp_path / f"u{n}", SAVES) for n in (1, 2)]
    with meanwhile(stopping := Stopping(launcher, jobs[1:2])):
        ended = carry_out(launcher, jobs)
    assert {name: end.status for name, end in ended.items()} == {"u0": 3, "u1": 143}
    assert stopping.seconds < 10
    assert not alive(jobs[1].folder)
    assert not (jobs[2].folder / "pid").exists()
