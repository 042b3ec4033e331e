"""Recommend the add-ons for uneven classes, with the command that uses one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ssl_toolkit import registry
from ssl_toolkit.errors import PluginError

ADD_ONS = {
    "logit_adjustment": "logits adjusted by the shares of the labels",
    "saw": "losses that are weighted by class",
    "adsh": "a threshold for each class",
    "daso": "pseudo labels blended with those of class prototypes",
    "abc": "an auxiliary head that is trained on balanced classes",
    "darp": "pseudo labels that follow the class shares of the pool",
}
"""The add-ons for uneven classes: first those that raised the accuracy most in docs/results."""

RATIO = 3.0
"""Ratio of the largest to the smallest class from which they are recommended."""


def uneven_advice(
    counts: Mapping[str, Mapping[str, int] | None], algo: str, options: Sequence[str], output: str
) -> list[str]:
    """Return what helps with uneven classes, in lines for the user; none if they are even.

    Only add-ons that are installed, and that the algorithm can be combined with, are named.

    Args:
        counts: Numbers of each class, by what they count, such as ``labels``; None for unknown.
        algo: Name of the algorithm; none with an add-on gets advice.
        options: Arguments of ``ssl-toolkit run`` beside the algorithm.
        output: Start of the path to the new run.
    """
    parts = [f"{kind}, {least:,} to {most:,} in a class" for kind, least, most in _uneven(counts)]
    if "+" in algo or not parts:
        return []
    head = f"uneven {' and '.join(parts)}: compare results by the balanced accuracy"
    names = [name for name in ADD_ONS if _fits(algo, name)]
    if not names:
        return [head]
    listed = ", ".join(f"+{name} ({ADD_ONS[name]})" for name in names)
    arguments = ["--algo", f"{algo}+{names[0]}", *options, "--output", f"{output}-{names[0]}"]
    command = shlex.join(["ssl-toolkit", "run", *arguments])
    return [f"{head}; add-ons for uneven classes: {listed}", f"to use one: {command}"]


def _uneven(counts: Mapping[str, Mapping[str, int] | None]) -> list[tuple[str, int, int]]:
    """Return the kinds of counts that are uneven, each with its least and largest count."""
    present = {kind: [n for n in of.values() if n] for kind, of in counts.items() if of}
    extremes = [(kind, min(of), max(of)) for kind, of in present.items() if of]
    return [(kind, least, most) for kind, least, most in extremes if most >= RATIO * least]


def _fits(algo: str, name: str) -> bool:
    if not registry.has("addons", name):
        return False
    try:
        registry.load("algorithms", f"{algo}+{name}")
    except PluginError:
        return False
    return True
