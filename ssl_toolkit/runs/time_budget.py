"""``--minutes M``: image size, views and steps of a run, fitted to what is measured here."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ssl_toolkit.config.loading import AUTO, RunConfig
from ssl_toolkit.config.roles import OPEN_VALUES
from ssl_toolkit.console import Console
from ssl_toolkit.data.load import load_table
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.experiment import split_of
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.runs.auto import resolve_auto, stand_in
from ssl_toolkit.runs.folder import RunFolder, check_same
from ssl_toolkit.runs.pace import brief, roughly
from ssl_toolkit.runs.speeds import Speeds, count_images, measure_speeds

USED = 0.9
"""Share of the time that is planned for; the rest is for what is not measured."""
SHARE = 0.5
"""Share of the time that the cross-validation of ``--algo auto`` may take."""
SMALLEST = 64
"""Smallest side in pixels that is tried in place of a larger one."""
SIZES = (6, 5, 4, 3)
"""Sides that are tried after the backbone's own, in sevenths of it."""
HOPE = 0.7
"""A larger size is measured if so much of what its area lets expect fits the time."""
LEAST_VIEWS = 4
"""A larger size is taken if the features of so many views fit; more of them gain less."""
LEAST_STEPS = 10
"""Fewer steps are refused."""


@dataclass(frozen=True)
class Fit:
    """What fits into the time."""

    image_size: int
    steps: int | None
    """None where a head is fitted at once."""
    feature_views: int | None
    """None where steps don't draw from features."""
    image_seconds: float | None
    """Measured, for the features of an image."""
    step_seconds: float | None
    """Measured."""
    expected_seconds: float
    """Of all that is left to do."""
    enough: bool
    """Whether it trains long enough to prefer it to a smaller image size."""

    def line(self, minutes: float, larger: tuple[int, float] | None) -> str:
        """What was chosen and why.

        Args:
            minutes: that were given.
            larger: the next larger size and the seconds that it would take.
        """
        chosen = [f"{self.image_size} px"]
        if self.feature_views is not None:
            chosen.append(f"{self.feature_views} view" + "s" * (self.feature_views != 1))
        if self.steps is not None:
            chosen.append(f"{self.steps:,} steps")
        found = [
            f"{brief(taken)} {what}"
            for taken, what in ((self.image_seconds, "an image"), (self.step_seconds, "a step"))
            if taken is not None
        ]
        why = f"measured {', '.join(found)}" if found else "features are there"
        if larger is not None:
            why += f"; {larger[0]} px would take about {roughly(larger[1])}"
        return f"--minutes {minutes:g}: {', '.join(chosen)} ({why})"


def resolve_minutes(config: RunConfig, console: Console) -> tuple[RunConfig, dict[str, Any]]:
    """Choose what ``algo: auto`` and ``minutes`` leave open.

    Args:
        config: validated.
        console: where it is said what was chosen.

    Returns:
        The configuration to run, and what ``record.json`` says of the choices: under ``auto`` and
        ``minutes``, None for none.

    Raises:
        UserError: what `prepare` raises, or the time is too short.
    """
    minutes = config.settings.minutes
    if minutes is None:
        config, choice = resolve_auto(config, console.say, console.reading)
        return config, {"auto": choice, "minutes": None}
    if config.settings.devices > 1:
        raise ConfigError(
            f"--minutes {minutes:g}: steps of {config.settings.devices} processes are not measured;"
            " give --steps, or leave --devices out"
        )
    started, given = time.monotonic(), 60 * minutes
    fitting = Fitting(config)
    choice, ready = None, False
    if config.settings.algo == AUTO:
        first = stand_in(config)
        first_fit, larger = fitting.fit(first, started + SHARE * USED * given)
        size = None if larger is None else first_fit.image_size  # what is tuned has its own
        config = _with(config, image_size=size, feature_views=first_fit.feature_views)
        left = started + SHARE * given - time.monotonic()
        config, choice = resolve_auto(config, console.say, console.reading, max(0.0, left))
        ready = bool(choice and choice["trials"])
        fit, _ = fitting.fit(config, started + USED * given, ready=ready)
        if fit.image_seconds is None:
            fit = replace(fit, image_seconds=first_fit.image_seconds)
    else:
        fit, larger = fitting.fit(config, started + USED * given)
    console.say(fit.line(minutes, larger), important=True)
    return with_fit(config, asdict(fit)), {
        "auto": choice,
        "minutes": {"minutes": minutes, **asdict(fit)},
    }


def check_chosen(folder: RunFolder, config: RunConfig) -> None:
    """As `check_same`; the run in the folder has what was chosen when it started.

    Args:
        folder: of a run.
        config: validated.

    Raises:
        ConfigError: as `check_same`.
    """
    found = folder.read_record()
    config = stand_in(config, found.auto)
    fit = found.minutes
    if fit is not None and fit["minutes"] == config.settings.minutes:
        config = with_fit(config, fit)
    check_same(folder, resolve_config(config)[0])


def with_fit(config: RunConfig, fit: Mapping[str, Any]) -> RunConfig:
    """The configuration with what was chosen for its ``minutes``, which are then done with."""
    steps = config.settings.steps if fit["steps"] is None else fit["steps"]
    made = _with(config, image_size=fit["image_size"], feature_views=fit["feature_views"])
    update = {"steps": steps, "minutes": None}
    return replace(made, settings=made.settings.model_copy(update=update))


def _with(config: RunConfig, *, image_size: int | None, feature_views: int | None) -> RunConfig:
    settings = config.settings
    model = settings.model
    if feature_views is not None:
        model = model.model_copy(update={"feature_views": feature_views})
    update = {"image_size": image_size, "model": model}
    return replace(config, settings=settings.model_copy(update=update))


class Fitting:
    """Fits runs on one set of images to a time.

    Args:
        config: of the run, validated; its algorithm may be changed from call to call.
    """

    def __init__(self, config: RunConfig) -> None:
        settings = resolve_config(config)[0].settings
        self._share = USED * (SHARE if settings.algo == AUTO else 1.0)
        table = load_table(settings, lazily=True)
        self._table, self._split, _ = split_of(table, settings)
        self._counts = count_images(self._split)

    def fit(
        self, config: RunConfig, deadline: float, *, ready: bool = False
    ) -> tuple[Fit, tuple[int, float] | None]:
        """The best that ends by a time.

        Args:
            config: of the run; what it says of steps and image size is kept, and its feature views
                are the most that are taken.
            deadline: by `time.monotonic`.
            ready: whether the features are there already.

        Returns:
            What fits, and the next larger image size with the seconds that it would take.

        Raises:
            ConfigError: the time is too short.
            UserError: as `prepare`.
        """
        sizes = _sizes(config)
        smallest, base = self._smallest(config, sizes, ready)
        larger: tuple[int, float] | None = None
        for size in sizes:
            factor = (size / smallest) ** 2
            found = self._plan(config, size, base.scaled(factor), deadline)
            if size > smallest:
                hoped = self._plan(config, size, base.scaled(HOPE * factor), deadline)
                speeds = self._speeds(config, size, ready) if hoped.enough else None
                if speeds is not None:
                    found = self._plan(config, size, speeds, deadline)
                elif hoped.enough:  # no size of this backbone
                    continue
                else:
                    found = replace(found, enough=False)
            if found.enough or size == smallest:
                break
            larger = size, found.expected_seconds
        left = deadline - time.monotonic()
        if not found.enough:
            self._refuse_too_little(config, found, left)
        return found, larger

    def _smallest(self, config: RunConfig, sizes: list[int], ready: bool) -> tuple[int, Speeds]:
        """The smallest size that the backbone takes, and how fast it is."""
        for size in reversed(sizes):
            if (speeds := self._speeds(config, size, ready)) is not None:
                return size, speeds
        raise AssertionError(sizes)

    def _plan(self, config: RunConfig, size: int, speeds: Speeds, deadline: float) -> Fit:
        """What fits at one size; the least that makes sense where nothing does."""
        counts, settings = self._counts, config.settings
        left = deadline - time.monotonic()
        fixed = counts.all * (speeds.read + speeds.plain)
        fixed += counts.trained * speeds.view * speeds.fixed_views
        costs = speeds.costs
        image_seconds = speeds.plain or None
        if costs is None:
            return Fit(size, None, None, image_seconds, None, fixed, fixed <= left)
        fixed += (counts.validation + counts.test) * speeds.predict
        view = counts.trained * speeds.view
        most_views = settings.model.feature_views
        least_views = min(LEAST_VIEWS, most_views) if view else 0

        def total(steps: int) -> float:
            return costs.of(steps, _eval_every(config, steps))

        asked = _steps_asked(config)
        wanted = asked or settings.steps or OPEN_VALUES["steps"]
        rest = left - fixed - least_views * view
        steps = wanted
        if total(wanted) > rest:
            steps = costs.steps_within(max(0.0, rest), lambda n: _eval_every(config, n))
        enough = steps >= (asked or wanted // 2)
        spare = rest - total(max(1, steps))
        views = least_views
        if view and spare > 0:
            views = min(most_views, least_views + int(spare / view))
        expected = fixed + views * view + total(steps if enough else wanted)
        return Fit(
            size, steps, views if view else None, image_seconds, costs.step, expected, enough
        )

    def _refuse_too_little(self, config: RunConfig, fit: Fit, left: float) -> None:
        wanted = _steps_asked(config)
        if fit.steps is not None and fit.steps >= (wanted or LEAST_STEPS):
            return
        given = config.settings.minutes or 0.0
        least = given + max(fit.expected_seconds - left, 6) / 60 / self._share
        what = f"{wanted:,} steps" if wanted and fit.steps is not None else "training"
        raise ConfigError(
            f"--minutes {given:g}: at {fit.image_size} px {what} with the {self._counts.all:,} "
            f"images would take about {roughly(fit.expected_seconds)}; give at least --minutes "
            f"{math.ceil(10 * least) / 10:.1f}, a smaller --backbone or fewer images"
        )

    def _speeds(self, config: RunConfig, size: int, ready: bool) -> Speeds | None:
        """Measure at one size; None where the backbone can't take it."""
        resolved = resolve_config(_with(config, image_size=size, feature_views=None))[0]
        try:
            return measure_speeds(resolved, self._table, self._split, ready=ready)
        except ModelError:
            if size == _own_size(config):
                raise
            return None


def _steps_asked(config: RunConfig) -> int | None:
    """The steps that the user gave; None where they are a default, which may be lowered."""
    settings = config.settings
    return settings.steps if "steps" in settings.model_fields_set else None


def _eval_every(config: RunConfig, steps: int) -> int:
    settings = config.settings.model_copy(update={"steps": max(1, steps)})
    return resolve_config(replace(config, settings=settings))[0].settings.eval_every


def _own_size(config: RunConfig) -> int:
    return resolve_config(config)[0].settings.image_size


def _sizes(config: RunConfig) -> list[int]:
    """Image sizes to try, the largest first: the run's own, then smaller ones."""
    own = _own_size(config)
    if config.settings.image_size is not None:
        return [own]
    # Most backbones halve the image five times; others cut it into patches of 14.
    unit = next(unit for unit in (32, 14, 16, 1) if own % unit == 0)
    smaller = {own * part // 7 // unit * unit for part in SIZES}
    return [own, *sorted((size for size in smaller if SMALLEST <= size < own), reverse=True)]
