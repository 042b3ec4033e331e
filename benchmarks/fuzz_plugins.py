"""Fuzz target for plugins: distributions with unusual names, groups, objects and imports."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ssl_toolkit import ToolkitError, registry
from ssl_toolkit.commands.list import command as list_command

MODULES = {
    "good": "from ssl_toolkit.interfaces import Algorithm\nclass Good(Algorithm): pass\n",
    "misses": "import no_such_module_at_all\n",
    "misses_name": "from ssl_toolkit import NoSuchName\n",
    "syntax": "def (:\n",
    "encoding": "# coding: no-such-coding\n",
    "zeros": "x = 1\x00\n",
    "leaves": "import sys\nsys.exit('bye')\n",
    "leaves_oddly": "raise SystemExit({1: 2})\n",
    "base": "class Odd(BaseException): pass\nraise Odd('a\\nb')\n",
    "stops": "raise GeneratorExit\n",
    "group": "raise ExceptionGroup('several', [ValueError('one'), KeyError('two')])\n",
    "deep": "def f(): f()\nf()\n",
    "unsaid": "class Odd(Exception):\n    def __str__(self): raise ValueError('no text')\n"
              "raise Odd\n",
    "not_text": "class Odd(Exception):\n    def __str__(self): return 3\nraise Odd\n",
    "surrogate": "raise ValueError('\\ud800')\n",
    "named_oddly": "raise type('Odd\\n\\x1b[2J', (Exception,), {})('x')\n",
    "import_oddly": "raise ImportError('x', name=3)\n",
    "gone": "import sys\ndel sys.modules[__name__]\n",
    "replaced": "import sys\nsys.modules[__name__] = None\n",
    "warns": "import warnings\nwarnings.warn('old', DeprecationWarning)\nclass Thing: pass\n",
    "things": """
number, nothing, function, text, listed = 3, None, (lambda: 0), "a\\nb", [1] * 100_000

class Bare: pass
class Kind: plugin_kind = "algorithms"
class Backbones: plugin_kind = "backbones"
class OddKind: plugin_kind = ["algorithms"]
class OddConfig: plugin_kind, Config = "algorithms", 3
class NewApi: plugin_kind, api_version = "algorithms", (99, 0)
class OddApi: plugin_kind, api_version = "algorithms", "1.0"
class FloatApi: plugin_kind, api_version = "algorithms", (1.0, float("nan"))

class Unrepresented:
    def __repr__(self): raise ValueError("no text")

class Touchy:
    def __getattr__(self, name): raise KeyError(name)

class TouchyMeta(type):
    def __getattribute__(cls, name): raise RuntimeError("hands off")

class TouchyClass(metaclass=TouchyMeta): pass

class UnrepresentedMeta(type):
    def __repr__(cls): raise ValueError("no text")

class UnrepresentedClass(metaclass=UnrepresentedMeta): pass

class Strange:
    def __eq__(self, other): raise ValueError("not comparable")

class StrangeKind: plugin_kind = Strange()
class StrangeApi: plugin_kind, api_version = "algorithms", (Strange(), 0)
class TouchyConfig: plugin_kind, Config = "algorithms", Touchy()
unrepresented, touchy = Unrepresented(), Touchy()

def __getattr__(name): raise LookupError(name)
""",
}  # fmt: skip
"""Source of the modules that entry points refer to."""

OBJECTS = [
    line.split("=")[0].split(":")[0].split("(")[0].split()[-1]
    for line in MODULES["things"].splitlines()
    if line.startswith("class ")
]

_NAMES = st.sampled_from(
    ["first", "second", "simple", "fixmatch", "wrn_28_2", "digits", "weak", "local", "dist:name",
     "foreign-plugin:first", ":", "a b", "é", "名前", "\u202eevil", "\x1b[2J", "UPPER", "a.b", "9",
     "[red]bracket", "<b>", "x" * 300, "--help", "..", "0", "None"]
) | st.text(
    st.characters(exclude_characters="\n\r=[", exclude_categories=["Cs"]), max_size=6
)  # fmt: skip
_GROUPS = st.sampled_from(
    [*(f"ssl_toolkit.{group}" for group in registry.GROUPS)] * 8
    + ["ssl_toolkit.algorithm", "ssl_toolkit.", "ssl_toolkit", "console_scripts",
       "SSL_TOOLKIT.algorithms", "ssl_toolkit.algorithms.more", "é", ""]
)  # fmt: skip
_OBJECTS = (
    st.sampled_from([*MODULES]).map(lambda module: f"fuzzed_{module}:Good")
    | st.sampled_from(["number", "nothing", "function", "text", "listed", "touchy",
                       "unrepresented", "missing", "Bare.deeper", *OBJECTS]
                      ).map(lambda name: f"fuzzed_things:{name}")
    | st.sampled_from(["fuzzed_good", "fuzzed_good:Good [extra]", "fuzzed_good:Good [",
                       "fuzzed_good:", "fuzzed_good:Good:Good", ":Good", ".:.", "..x:y",
                       "fuzzed good:Good", "fuzzed_good . x : Good", "é:ü", "json:loads", "",
                       ":", "fuzzed_good:Good.", "fuzzed_good:__class__", "ssl_toolkit:Algorithm",
                       "ssl_toolkit.none:X", "x" * 400 + ":y", "'fuzzed_good:Good'",
                       "fuzzed_good:Good # note"])
)  # fmt: skip
_DISTRIBUTIONS = st.sampled_from(
    ["foreign-plugin", "Foreign_Plugin", "foreign.plugin", "other", "ssl-toolkit", "SSL_toolkit",
     "(this session)", "a:b", "é", "a b", "x" * 200, "\u202e", ""]
)  # fmt: skip
_VERSIONS = st.sampled_from(["1.0", "1.0", "0", "", "not a version", "1.0\x1b[2J", "é", "1!2+x"])


def distributions() -> st.SearchStrategy[Any]:
    """Return a strategy for up to three distributions: folder, metadata, entry points, encoding."""
    lines = st.tuples(_NAMES, _OBJECTS).map(" = ".join)
    odd = ["no equals sign", "= x", "x =", "[", "]", "# note", "\x00", "\ufeff"]
    sections = st.tuples(
        _GROUPS.map(lambda group: f"[{group}]"),
        st.lists(lines, min_size=1, max_size=3).map("\n".join),
        st.sampled_from([""] * 70 + odd),
    ).map("\n".join)
    points = st.lists(sections, min_size=1, max_size=2).map("\n\n".join)
    any_name = st.tuples(_DISTRIBUTIONS, _VERSIONS).map(
        lambda d: f"Metadata-Version: 2.1\nName: {d[0]}\nVersion: {d[1]}\n"
    )
    valid = st.just("Metadata-Version: 2.1\nName: foreign-plugin\nVersion: 1.0\n")
    # A distribution without a name is skipped entirely, so a few of those are enough.
    metadata = st.sampled_from([valid] * 12 + [any_name] * 20 + [st.text(max_size=30)]).flatmap(
        lambda kind: kind
    )
    folders = st.sampled_from(
        ["foreign_plugin-1.0.dist-info", "foreign_plugin-2.0.dist-info", "other-1.0.dist-info",
         "other.egg-info", "-.dist-info", "é-1.dist-info", "a-b-c-1.dist-info"]
    )  # fmt: skip
    encodings = st.sampled_from(["utf-8"] * 30 + ["latin-1", "utf-16"])
    return st.lists(st.tuples(folders, metadata, points, encodings), min_size=1, max_size=3)


_numbers = itertools.count()


def discover(folder: Path, example: list[tuple[str, str, str, str]]) -> str:
    modules = folder / "modules"
    if not modules.exists():
        modules.mkdir()
        for name, source in MODULES.items():
            (modules / f"fuzzed_{name}.py").write_text(source)
    site = folder / str(next(_numbers))
    for name, metadata, points, encoding in example:
        info = site / name
        info.mkdir(parents=True, exist_ok=True)
        for file, text in (("METADATA", metadata), ("PKG-INFO", metadata),
                           ("entry_points.txt", points)):  # fmt: skip
            (info / file).write_bytes(text.encode(encoding, "replace"))
    try:
        return _discover(site, modules)
    finally:
        shutil.rmtree(site)


def _discover(site: Path, modules: Path) -> str:
    with _path(str(site)):  # not the installed distributions, which take long to read
        known = [entry for group in registry.GROUPS for entry in registry.entries(group)]
        discovered = [entry for entry in known if entry.distribution != registry.NOTEBOOK]
    with _path(str(site), str(modules), *sys.path):
        usable = {entry: _is_usable(entry) for entry in discovered}
    with _path(str(site)):
        for entry in discovered:
            with suppress(ToolkitError):  # the name is ambiguous
                assert registry.find(entry.group, entry.name) in known
            assert registry.has(entry.group, f"{entry.distribution}:{entry.name}")
        if discovered:
            _list(discovered[0].group)
    if not discovered:
        return "no entries"
    return "entries, some usable" if any(usable.values()) else "entries, none usable"


def _is_usable(entry: registry.Entry) -> bool:
    plugin, reason = registry.attempt(entry)
    assert (plugin is None) == bool(reason)
    assert "\n" not in reason
    reason.encode()  # it is printed and written to files
    return plugin is not None


def _list(group: str) -> None:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        list_command.main([group], standalone_mode=False)
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()):
        list_command.main([group, "--json"], standalone_mode=False)
    json.loads(output.getvalue().encode())


@contextmanager
def _path(*folders: str) -> Iterator[None]:
    """Search only these folders for modules and distributions."""
    before = sys.path[:]
    sys.path[:] = folders
    try:
        yield
    finally:
        sys.path[:] = before
