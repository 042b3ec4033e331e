"""The API's version, what becomes of plugins made for another, and the public surface."""

from __future__ import annotations

import ast
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from in_process import call, refusal
from public_api import surface

import ssl_toolkit
from ssl_toolkit import API_VERSION, Augmenter, PluginError, register_augmenter, registry
from ssl_toolkit.api import api_mismatch, deprecated

HERE = Path(__file__).parent
MAJOR, MINOR = API_VERSION
OTHERS = {
    "newer_major": (f"({MAJOR + 1}, 0)", f"API {MAJOR + 1}.0", "upgrade ssl-toolkit"),
    "newer_minor": (
        f"({MAJOR}, {MINOR + 1})", f"API {MAJOR}.{MINOR + 1}", "upgrade ssl-toolkit",
    ),
    "older_major": (f"({MAJOR - 1}, 9)", f"API {MAJOR - 1}.9", "upgrade the plugin"),
    "one_number": (f"{MAJOR}", f"api_version is {MAJOR}", f"write {API_VERSION}"),
    "text": (f"'{MAJOR}.{MINOR}'", f"api_version is '{MAJOR}.{MINOR}'", f"write {API_VERSION}"),
}  # fmt: skip
SOURCE = """
from ssl_toolkit import Algorithm, Loss, StepOutput, Views

class Algo(Algorithm):
    "Made for another version."
    api_version = {version}

    def views(self):
        return Views()

    def step(self, batch, ctx):
        return StepOutput({{"supervised": Loss(ctx.model(batch.labeled_weak[0]).sum())}})
"""


def test_the_version_is_two_numbers() -> None:
    assert [type(number) for number in API_VERSION] == [int, int]


@pytest.mark.parametrize("version", [None, API_VERSION, (MAJOR, 0)])
def test_a_plugin_for_this_api_is_accepted(version: object) -> None:
    attributes = {} if version is None else {"api_version": version}
    assert api_mismatch(type("Plugin", (), attributes)) == ""


# --- what the user sees -------------------------------------------------------------------------


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Put ``other-api-pkg`` 3.2 with the algorithm ``other`` on the path."""

    def put(source: str) -> None:
        record = tmp_path / "other_api_pkg-3.2.dist-info"
        record.mkdir()
        text = "Metadata-Version: 2.1\nName: other-api-pkg\nVersion: 3.2\n"
        (record / "METADATA").write_text(text)
        points = "[ssl_toolkit.algorithms]\nother = other_api_pkg:Algo\n"
        (record / "entry_points.txt").write_text(points)
        (tmp_path / "other_api_pkg.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    yield put
    sys.modules.pop("other_api_pkg", None)


@pytest.mark.parametrize("case", OTHERS)
def test_a_plugin_for_another_api_is_reported(case: str, install: Callable[[str], None]) -> None:
    version, text, way_out = OTHERS[case]
    install(SOURCE.format(version=version))
    for command in (("run", "--algo", "other", "--dry-run"), ("check", "other")):
        message = refusal(*command)
        assert len(message.splitlines()) == 1
        for part in ("algorithm 'other'", "other-api-pkg 3.2", text, way_out):
            assert part in message, command
    for command in (("show", "other"), ("list", "algorithms", "--verbose")):
        lines = [line for line in call(*command, "--json").stdout.splitlines() if text in line]
        assert len(lines) == 1, command
        assert way_out in lines[0]
    assert json.loads(call("show", "other", "--json").stdout)[0]["state"] == "broken"


def test_a_version_that_differs_names_ours(install: Callable[[str], None]) -> None:
    install(SOURCE.format(version=OTHERS["newer_major"][0]))
    ours = f"ssl-toolkit {ssl_toolkit.__version__} has {MAJOR}.{MINOR}"
    assert ours in refusal("run", "--algo", "other", "--dry-run")


@pytest.mark.parametrize("line", ["from ssl_toolkit import Hook", "import ssl_toolkit.hooks"])
def test_a_missing_public_name_is_reported_as_another_api(
    line: str, install: Callable[[str], None]
) -> None:
    install(line + SOURCE.format(version=API_VERSION))
    message = refusal("run", "--algo", "other", "--dry-run")
    assert "made for another plugin API" in message
    assert "hook" in message.lower()


def test_another_failing_import_is_not_blamed_on_the_api(install: Callable[[str], None]) -> None:
    install("import not_there_at_all")
    assert "plugin API" not in refusal("run", "--algo", "other", "--dry-run")


def test_a_decorator_refuses_another_api() -> None:
    other = type("Other", (Augmenter,), {"api_version": (MAJOR + 1, 0)})
    with pytest.raises(PluginError, match="upgrade ssl-toolkit"):
        register_augmenter("other")(other)
    assert not registry.has("augmenters", "other")


# --- deprecations -------------------------------------------------------------------------------


def test_a_deprecated_function_warns_and_works() -> None:
    @deprecated("0.4", "use sum")
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.warns(DeprecationWarning, match="add is deprecated since .* 0.4 .* 0.5; use sum"):
        assert add(1, 2) == 3


def test_a_deprecated_class_warns_where_it_is_made() -> None:
    @deprecated("1.9.2", "use a tuple")
    class Pair:
        pass

    with pytest.warns(DeprecationWarning, match=r"Pair is deprecated .* gone in 1\.10") as message:
        Pair()
    assert message[0].filename == __file__


def test_names_that_are_not_deprecated_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ssl_toolkit.__all__:
            assert getattr(ssl_toolkit, name) is not None


def deprecations(source: str) -> list[str]:
    """The versions that a source names in ``@deprecated``."""
    calls = [
        decorator
        for node in ast.walk(ast.parse(source))
        for decorator in getattr(node, "decorator_list", [])
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "deprecated"
    ]
    return [ast.literal_eval(one.args[0]) for one in calls]


def overdue(since: str) -> bool:
    """Whether what was deprecated then must be gone by now."""
    return minor_of(since) < minor_of(ssl_toolkit.__version__)


def minor_of(version: str) -> list[int]:
    return [int(number) for number in version.split(".")[:2]]


def test_names_deprecated_a_version_ago_are_removed() -> None:
    assert deprecations("@deprecated('0.0', 'x')\ndef f(): ...") == ["0.0"]
    assert overdue("0.0")
    assert not overdue(ssl_toolkit.__version__)
    for path in sorted((HERE.parents[1] / "ssl_toolkit").rglob("*.py")):
        result = deprecations(path.read_text("utf-8"))
        assert [since for since in result if overdue(since)] == [], path


# --- the public surface -------------------------------------------------------------------------


def test_the_public_surface_matches_the_list() -> None:
    agreed = (HERE / "public_api.txt").read_text("utf-8").splitlines()
    assert list(surface()) == agreed, (
        "The public surface has changed. If that is wanted, raise API_VERSION as "
        "docs/plugins/stability.md says and write the file again: "
        "python tests/support/public_api.py > tests/project/public_api.txt"
    )


def test_the_surface_shows_what_plugins_rely_on() -> None:
    lines = list(surface())
    for line in (
        "ssl_toolkit.Algorithm.step(self, batch: Batch, ctx: Context) -> StepOutput",
        "ssl_toolkit.Views.unlabeled_ratio: int = 1",
        "ssl_toolkit.Algorithm.scan_every: property -> int",
        f"ssl_toolkit.API_VERSION = {API_VERSION}",
        "ssl_toolkit.ops.sharpen(probs: Tensor, temperature: float) -> Tensor",
    ):
        assert line in lines, line
