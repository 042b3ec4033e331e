"""The parts of the names of plugins: distributions, algorithms and their add-ons."""

from __future__ import annotations


def parts_of(group: str, name: str) -> list[tuple[str, str]]:
    """Return group and name of each plugin that a name means.

    >>> parts_of("algorithms", "fixmatch+abc")
    [('algorithms', 'fixmatch'), ('addons', 'abc')]
    """
    first, *addons = name.split("+") if group == "algorithms" else [name]
    return [(group, first), *(("addons", addon) for addon in addons)]


def bare(name: str) -> str:
    """Return the name of an algorithm, with its add-ons, without distributions."""
    return "+".join(part.rpartition(":")[2] for part in name.split("+"))


def section_of(algo: str) -> str:
    """Return the key of the options of an algorithm, which contain those of its add-ons.

    >>> section_of("their-package:fixmatch+abc")
    'fixmatch'
    """
    return bare(algo).partition("+")[0]


def kind_of(group: str) -> str:
    """Return what a plugin of a group is called: ``algorithm``, ``add-on``."""
    return "add-on" if group == "addons" else group.removesuffix("s")


def class_of(group: str) -> str:
    """Return the name of the base class of the plugins of a group."""
    return "AddOn" if group == "addons" else group.removesuffix("s").capitalize()
