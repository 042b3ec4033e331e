"""Find unwanted words in pages, help and source.

``python tests/support/words.py > tests/project/words_to_clean.txt`` rewrites the table of texts
that still contain some.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click

from ssl_toolkit.commands import COMMANDS, LazyGroup

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "project" / "words_to_clean.txt"

ALIASES = {
    "ssl_toolkit/config/other_names.py",
    "ssl_toolkit/config/settings.py",
    "ssl_toolkit/data/class_names.py",
    "ssl_toolkit/data/readers/folders.py",
    "ssl_toolkit/data/readers/manifests.py",
    "ssl_toolkit/data/splits/draw.py",
    "ssl_toolkit/engine/batches.py",
}
"""Files that accept British folder names and keys, or derive seeds from them."""

_INSTEAD = {
    "report, raise, print, show, say": r"tell(s|ing)?|told",
    "again, new": r"anew|afresh",
    "start": r"beg[aiu]n|begins",
    "will, must": r"shall",
    "everyone who, who": r"whoever",
    "may, possibly": r"perhaps",
    "resume, continue": r"go on|goes on|gone on|going on|went on",
    "no longer, nothing else": r"no more(?! than)",
    "image": r"pictures?",
    "must, should": r"ought( to)?",
    "therefore, by which, in which": r"hence|thereby|therein|thereof|whereby|wherein",
    "while, among, on": r"whilst|amongst|upon",
    "so that … not, three times, as entered": r"lest|thrice|as typed",
    "truncated": r"cut (file|row|line)s?",
    "faster, more accurate (with the measurement)": r"pays off",
    "survive, unrequested": r"outlive[sd]?|unasked",
    "is, are (in)": r"stands?(?! for| in for|-)",
    "is (in)": r"lies?",
    "compute, estimate": r"reckon(s|ed|ing)?",
    "fix, repair": r"mend(s|ed|ing)?",
    "has not been measured": r"was not run|asked were",
    "per": (
        r"(labels?|images?|runs?|rows?|paths?|processes|threads|views?|once|one) an? "
        r"(class|step|second|run|line|row|batch|seed|image|epoch|core|GPU|process|device)"
    ),
    "American spelling": (
        r"(un)?labelled|labelling|behaviours?|colours?|coloured|grey|favours?|centres?"
        r"|neighbours?(hood)?|centred|modelling|judgement|artefacts?|licenced?|catalogue|(normal"
        r"|optim|initial|serial|summar|recogn|organ|minim|maxim|synchron|general)is(e[sd]?|ing|ation)"
    ),
}
_BOUNDED = {
    instead: re.compile(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", re.IGNORECASE)
    for instead, words in _INSTEAD.items()
}
_OPENING = re.compile(r'(?<=""")(?:What|Whether)\b')


def findings(name: str, text: str) -> list[str]:
    """Return each unwanted word of a text, with its line and what to write in its place."""
    result = []
    for number, line in enumerate(text.splitlines(), 1):
        for instead, pattern in _BOUNDED.items():
            for match in pattern.finditer(line):
                alias = name in ALIASES and "labelled" in match[0].lower()
                if not alias:
                    result.append(f"{name}:{number}: {match[0]!r} (write: {instead})")
        if name.endswith(".py") and (match := _OPENING.search(line)):
            result.append(f"{name}:{number}: {match[0]!r} opens it (write: Return, True if)")
    return result


def _help_of(command: click.Command) -> Iterator[str]:
    yield command.help or ""
    for parameter in command.params:
        yield getattr(parameter, "help", "") or ""


def pages() -> list[Path]:
    """Return the pages of the root and of `docs/`, but not those that the site generates."""
    generated = ROOT / "docs" / "generated"
    docs = (path for path in (ROOT / "docs").rglob("*.md") if generated not in path.parents)
    return [*ROOT.glob("*.md"), *docs]


def texts() -> Iterator[tuple[str, str]]:
    """Yield name and content of all pages, configurations, help texts and source files."""
    files = pages()
    files.remove(ROOT / "docs/reference/glossary.md")  # lists unwanted words
    files += [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / ".github").rglob("*.*ml")]
    files += (ROOT / ".github").glob("*.md")
    files += [*(ROOT / "examples").rglob("*.md"), *(ROOT / "examples").glob("*.ipynb")]
    for folder in ("ssl_toolkit", "plugins", "examples", "docs"):
        files += [
            p for ending in ("py", "j2", "js", "html") for p in (ROOT / folder).rglob(f"*.{ending}")
        ]
    files += (ROOT / "plugins").rglob("*.md")
    for path in sorted(files):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for name, command in sorted(_commands()):
        yield f"ssl-toolkit {name} --help", "\n".join(_help_of(command))


def _commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        module = importlib.import_module(f"ssl_toolkit.commands.{name.replace('-', '_')}")
        yield name, module.command
        if isinstance(group := module.command, LazyGroup):
            context = click.Context(group)
            for verb in group.helps:
                command = group.get_command(context, verb)
                assert command is not None
                yield f"{name} {verb}", command


def unclean() -> dict[str, list[str]]:
    """Return the findings of each text that has some."""
    return {name: result for name, text in texts() if (result := findings(name, text))}


if __name__ == "__main__":
    print("\n".join(unclean()))
