"""What the command line answers without training anything."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import call, refusal

import ssl_toolkit
from ssl_toolkit import registry
from ssl_toolkit.commands import COMMANDS, doctor
from ssl_toolkit.commands.label import VERBS


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


# --- light answers ------------------------------------------------------------------------------

LIGHT = [
    [],
    ["--help"],
    ["-h"],
    ["--version"],
    *[[name, "--help"] for name in COMMANDS],
    *[["label", verb, "--help"] for verb in VERBS],
    ["label", "serv"],
    ["list"],
    ["list", "algorithms", "--json"],
    ["lst"],
    ["--bogus"],
    ["run", "--bogus"],
    ["run", "--set", "nonsense"],
    ["run", "--steps", "many", "--set", "lerning_rate=1"],
    ["run", "--config", "not/there.yaml"],
    ["evaluate"],
]
PROBE = """
import json, sys, time
heavy = {"torch", "torchvision", "timm", "kornia"}
import ssl_toolkit
from ssl_toolkit.commands import main
for arguments in json.loads(sys.argv[1]):
    started = time.process_time()
    try:
        main(arguments)
    except SystemExit as ended:
        status = ended.code
    seconds = time.process_time() - started
    print("@", json.dumps([status, seconds, sorted(heavy & sys.modules.keys())]))
"""


def test_quick_commands_do_not_import_torch() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(LIGHT)],
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line[2:]) for line in result.stdout.splitlines() if line[:2] == "@ "]
    for arguments, (status, seconds, imported) in zip(LIGHT, answers, strict=True):
        assert imported == [], arguments
        # Of processor time, so that a busy machine fails nothing.
        assert seconds < 2, (arguments, seconds)
        wrong = arguments and arguments[-1] not in ("--help", "-h", "--version", "list", "--json")
        assert (status == 2) == bool(wrong) or arguments == [], (arguments, status)
    assert "Traceback" not in result.stderr


def test_help_names_every_command() -> None:
    call("list")  # importing that command must not hide Python's own list
    output = call("--help").stdout
    for name, text in COMMANDS.items():
        assert f"  {name}" in output
        assert text in output
        assert name == "label" or "--debug" in call(name, "--help").stdout
    output = call("label", "--help").stdout
    for verb, text in VERBS.items():
        assert f"  {verb}" in output
        assert text in output
        assert "--debug" in call("label", verb, "--help").stdout


@pytest.mark.parametrize("arguments", [(), ("label",)])
def test_without_arguments_the_help_is_shown(arguments: tuple[str, ...]) -> None:
    result = call(*arguments)
    assert result.returncode == 2
    assert result.stderr == call(*arguments, "--help").stdout


def test_many_errors_leave_the_screen_readable(tmp_path: Path) -> None:
    lines = [f"key_{number}: 1" for number in range(40)]
    (tmp_path / "many.yaml").write_text("\n".join(lines))
    messages = refusal("run", "--config", tmp_path / "many.yaml").splitlines()
    assert len(messages) == 26
    assert messages[-1] == "error: and 15 more"


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    assert "runs on Linux and macOS; on Windows, use it in WSL" in refusal("list")


def test_version() -> None:
    assert call("--version").stdout.strip() == f"ssl-toolkit, version {ssl_toolkit.__version__}"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["lst"], "no such command 'lst' (did you mean 'list'?)"),
        (["evalute", "x"], "did you mean 'evaluate'?"),
        (["run", "--stepz", "3"], "no such option --stepz (did you mean '--steps'?)"),
        (["run", "--labels_per_class", "3"], "did you mean '--labels-per-class'?"),
        (["run", "--labelled-in-pool"], "did you mean '--labeled-in-pool' or"),
        (["run", "--learning-rate", "3"], "no such option --learning-rate (did you mean '--lr'?)"),
        (["run", "--lr-rate", "3"], "did you mean '--lr'?"),
        (["run", "--epochs", "3"], "did you mean '--steps'?"),
        (["compare", "--num-workers", "3"], "did you mean '--workers'?"),
        (["run", "--arch=x"], "did you mean '--backbone'?"),
        (["run", "--model", "x"], "did you mean '--backbone'?"),
        (["run", "--keep", "3"], "did you mean '--keep-checkpoints'?"),
        (["run", "--weight-decay", "3"], "did you mean '--set optimizer.weight_decay=VALUE'?"),
        (["run", "--mu", "3"], "did you mean '--set algorithm.unlabeled_ratio=VALUE'?"),
        (["resume", "x", "--epochs", "3"], "no such option --epochs (did you mean '--steps'?)"),
        (["check_run", "x"], "did you mean 'check-run'?"),
        (["run", "--algo"], "--algo"),
        (["run", "a.yaml"], "(a.yaml); give a setting as --set KEY=VALUE, a configuration file"),
        (["run", "--bogus"], "no such option --bogus; see `ssl-toolkit run --help`"),
        (["show", "a", "b"], "argument (b); see `ssl-toolkit show --help`"),
        (["evaluate"], "missing argument 'MODEL'; see `ssl-toolkit evaluate --help`"),
        (["list", "nothing"], "nothing"),
        (["show"], "NAME"),
        (
            ["resume", "x", "--steps", "many"],
            "value for '--steps': 'many' is not an integer",
        ),
        (["resume", "x", "--time-limit", "soon"], "'soon' is not a number"),
        (["new", "--kind", "x"], "no such option --kind"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], text: str) -> None:
    message = refusal(*arguments)
    assert text in message
    assert len(message.splitlines()) == 1


def test_no_name_sends_control_sequences_to_the_terminal(tmp_path: Path) -> None:
    message = refusal("run", "--data", tmp_path / "a\x1b[2J\u202eb\rc\u200dd")
    assert r"/a\x1b[2J\u202eb c" + "\u200dd" in message


def test_debug_shows_where(tmp_path: Path) -> None:
    assert "Traceback" not in call("evaluate", tmp_path).stderr
    assert "Traceback" in call("evaluate", tmp_path, "--debug").stderr


# --- list, show, doctor -------------------------------------------------------------------------


def test_list_shows_all_that_is_registered() -> None:
    rows = strict_json(call("list", "--json").stdout)
    expected = [
        (group, entry.name) for group in registry.GROUPS for entry in registry.entries(group)
    ]
    assert [(row["group"], row["name"]) for row in rows] == expected
    plain = call("list").stdout
    for _, name in expected:
        assert f"  {name} " in plain
    only = strict_json(call("list", "datasets", "--json").stdout)
    assert [row for row in rows if row["group"] == "datasets"] == only
    checked = strict_json(call("list", "--verbose", "--json").stdout)
    assert {row["state"] for row in checked} == {"ok"}
    assert all(row.keys() >= rows[0].keys() for row in rows + checked)


ALL = [(group, entry.name) for group in registry.GROUPS for entry in registry.entries(group)]


@pytest.mark.parametrize(("group", "name"), ALL)
def test_show_lists_every_option_with_default_range_and_source(group: str, name: str) -> None:
    shown = strict_json(call("show", name, "--json").stdout)
    (one,) = [entry for entry in shown if entry["group"] == group]
    assert one["summary"].endswith(".")
    text = call("show", name).stdout
    assert one["summary"] in text
    config = getattr(registry.load(group, name), "Config", None)
    fields = {} if config is None else config.model_fields
    options = {option["name"]: option for option in one.get("options", [])}
    assert options.keys() == fields.keys()
    for key, field in fields.items():
        assert options[key]["default"] == field.default
        assert options[key]["meaning"]
        assert f"  {key} = {field.default}  (" in text
        assert options[key]["type"]


def test_show_of_one_option() -> None:
    (one,) = strict_json(call("show", "fixmatch", "--json").stdout)
    (option,) = [o for o in one["options"] if o["name"] == "confidence_threshold"]
    assert (option["default"], option["range"]) == (0.95, ">= 0, <= 1")
    assert "paper" in option["source"]
    (option,) = [o for o in one["options"] if o["name"] == "interleaved"]
    assert (option["default"], one["profiles"]["reference"]["options.interleaved"]) == (False, True)
    (option,) = [o for o in one["options"] if o["name"] == "unlabeled_ratio"]
    assert (option["default"], option["for_pretrained"]) == (7, 1)
    assert (
        "  unlabeled_ratio = 7  (integer, >= 1, pre-trained: 1)" in call("show", "fixmatch").stdout
    )


@pytest.mark.parametrize(
    "arguments", [["doctor"], ["list", "--verbose"], *[["show", name] for _, name in ALL]]
)
def test_text_fits_a_terminal_of_80_columns(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("SSL_TOOLKIT_CACHE", "/cache")
    lines = call(*arguments).stdout.splitlines()
    # A word is never broken, so that paths can be copied.
    assert not [line for line in lines if len(line) > 80 and len(line.split()) > 1]


def test_doctor() -> None:
    result = call("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    versions = f"ssl-toolkit {ssl_toolkit.__version__}, torch {version('torch')}"
    for words in (versions, f"auto means {device}", "0 broken", "configs", "OMP_WAIT_POLICY="):
        assert words in result.stdout
    lines = {line.partition(":")[0]: line for line in result.stdout.splitlines()}
    with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert {f"[{extra}]" for extra in extras} <= lines.keys()
    assert [line for line in lines.values() if re.match(r"\[\w+\]: +\(", line)] == []


def test_doctor_describes_a_missing_extra_and_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda name: name != "ray")
    findings = dict(doctor._findings())
    assert findings["[ray]"].startswith("adds the launcher: ")
    assert findings["[ray]"].endswith('(not installed: pip install "ssl-toolkit[ray]" for ray)')
    assert findings["[onnx]"] == f"{doctor.EXTRAS['onnx']} (installed)"
    assert findings["[slurm]"].endswith("(installed)")
