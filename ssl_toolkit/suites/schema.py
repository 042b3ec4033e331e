"""The form of a suite, ``configs/benchmarks/NAME.yaml``; nothing here imports torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from ssl_toolkit.config import yaml
from ssl_toolkit.config.faults import Faults
from ssl_toolkit.config.options import Names, Options, option
from ssl_toolkit.config.seeds import Seeds
from ssl_toolkit.config.settings import Place
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import at_home
from ssl_toolkit.registry import did_you_mean
from ssl_toolkit.text import display_path

ROOT = "ROOT/"
"""Start of a path in the settings of a member: the folder of ``--data-root``."""


class Member(Options):
    """A comparison of a suite."""

    title: str = option("", min_length=1, help="what is compared, in one line")
    settings: dict[str, Any] = option(
        {}, help="settings over the suite's, null for none; ROOT/NAME is a folder below --data-root"
    )
    seeds: Seeds | None = option(None, help="seeds, instead of the suite's", min_length=1)
    leave_out: Names = option([], help="algorithms that can't train on this data")


def _as_folders(members: dict[str, Member]) -> dict[str, Member]:
    """Refuse names of members that are not those of folders."""
    for name in members:
        if not re.fullmatch(r"[\w][\w.-]*", name):
            raise PydanticCustomError(
                "member", f"{name!r} is no name of a member; use letters, digits, '-', '_' and '.'"
            )
    return members


class Suite(Options):
    """A suite: members, and what they share."""

    name: str = option("", min_length=1, help="name")
    version: int = option(0, ge=1, help="number of the suite; any change of a result increases it")
    title: str = option("", min_length=1, help="what the suite is for, in one line")
    algos: Names = option([], min_length=1, help="algorithms; all: every one that can train")
    baseline: str = option("", min_length=1, help="algorithm that the others are compared with")
    upper_bound: str | None = option(None, help="algorithm that uses the hidden labels")
    seeds: Seeds = option([], min_length=1, help="seeds of every member")
    unlabeled_ratio: int | None = option(
        None, ge=1, help="unlabeled images per labeled one of a step, for all algorithms"
    )
    settings: dict[str, Any] = option({}, help="settings of every member")
    folders: dict[str, str] = option({}, help="folders below --data-root, and how to make each")
    data_root: Place | None = option(None, help="path to the folder that ROOT stands for")
    members: Annotated[dict[str, Member], AfterValidator(_as_folders)] = option(
        {}, min_length=1, help="comparisons by name"
    )

    def algos_of(self, name: str) -> list[str]:
        """Return the algorithms of a member, with baseline and upper bound."""
        bound = [] if self.upper_bound is None else [self.upper_bound]
        every = dict.fromkeys([self.baseline, *self.algos, *bound])
        return [algo for algo in every if algo not in self.members[name].leave_out]

    def seeds_of(self, name: str) -> list[int]:
        """Return the seeds of a member."""
        return self.members[name].seeds or self.seeds

    def changed(
        self,
        *,
        algos: Sequence[str] = (),
        seeds: Sequence[int] = (),
        data_root: str | None = None,
    ) -> Suite:
        """Return the suite with other algorithms, seeds or data root, if they are given."""
        update: dict[str, Any] = {}
        if algos:
            update["algos"] = [*algos]
        if data_root is not None:
            update["data_root"] = str(at_home(data_root).absolute())
        if seeds:
            members = self.members.items()
            unset = {name: one.model_copy(update={"seeds": None}) for name, one in members}
            update |= {"seeds": [*seeds], "members": unset}
        return self.model_copy(update=update)

    def joined(self, earlier: Suite) -> Suite:
        """Return the suite with the algorithms and the seeds of an earlier call, too."""
        members = {}
        for name, one in self.members.items():
            before = earlier.seeds_of(name) if name in earlier.members else []
            seeds = sorted({*before, *self.seeds_of(name)})
            members[name] = one.model_copy(update={"seeds": seeds})
        update = {
            "algos": [*dict.fromkeys([*earlier.algos, *self.algos])],
            "data_root": self.data_root or earlier.data_root,
            "members": members,
        }
        return self.model_copy(update=update)

    def write(self, path: Path) -> None:
        """Write the suite, whole or not at all."""
        yaml.write(path, self.model_dump(mode="json"))


def read_suite(path: Path) -> Suite:
    """Read and check a suite.

    Raises:
        ConfigError: It can't be read or is invalid; names the file and the keys.
    """
    tree = yaml.read(path)
    faults = Faults({(key,): str(path) for key in tree}, "")
    suite = faults.validate(Suite, tree)
    faults.stop()
    assert suite is not None
    return suite


def find_suite(name: str) -> Suite:
    """Return a suite by its name, or by the path to its file.

    Raises:
        ConfigError: There is none; the message suggests near names.
    """
    path = at_home(name)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return read_suite(path)
    known = {one.stem: one for one in _packaged()}
    if name not in known:
        raise ConfigError(
            f"suite {display_path(path)}: not found{did_you_mean(name, known)}; suites: "
            f"{', '.join(known)}, or the path to a YAML file"
        )
    return read_suite(known[name])


def list_suites() -> Iterator[str]:
    """Yield a line for each suite that comes with the package."""
    suites = [read_suite(path) for path in _packaged()]
    width = max((len(suite.name) for suite in suites), default=0)
    for suite in suites:
        count, seeds = len(suite.members), len(suite.seeds)
        yield (
            f"{suite.name:{width}}  version {suite.version}, {count} members, {seeds} seeds: "
            f"{suite.title}"
        )


def _packaged() -> list[Path]:
    return sorted((yaml.configs_dir() / "benchmarks").glob("*.yaml"))
