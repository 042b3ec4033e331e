"""Fit image size, views and steps of a run to a time, by measuring: ``--minutes M``."""

from __future__ import annotations

import math
import time

import numpy as np

from ssl_toolkit.config.defaults import AUTO
from ssl_toolkit.config.images import Size, area, size_text
from ssl_toolkit.config.loading import RunConfig
from ssl_toolkit.config.settings import FREE_ON_RESUME, OPEN_VALUES, flatten
from ssl_toolkit.console import Console
from ssl_toolkit.data.load import load_table
from ssl_toolkit.engine.defaults import resolve_config
from ssl_toolkit.engine.splitting import split_of
from ssl_toolkit.errors import ConfigError, ModelError
from ssl_toolkit.runs.auto import resolve_auto, without_auto
from ssl_toolkit.runs.folder import RunFolder
from ssl_toolkit.runs.record import AutoChoice, MinutesChoice
from ssl_toolkit.runs.speeds import Speeds, measure_speeds, rows_of
from ssl_toolkit.text import brief, display_path, roughly

USED = 0.9
"""Share of the time that is planned; the rest covers parts that are not measured."""
SHARE = 0.5
"""Maximum share of the time for the cross-validation of ``--algo auto``."""
SMALLEST = 64
"""Minimum side in pixels to try."""
SIZES = (6, 5, 4, 3)
"""Sides to try after the backbone's default, in sevenths of it."""
OPTIMISM = 0.7
"""Factor of the time extrapolated by area; a size whose reduced estimate fits is measured."""
LEAST_VIEWS = 4
"""Minimum number of views at a larger size; more views gain less than more pixels."""
LEAST_STEPS = 10
"""Minimum number of steps of a run."""
FROM_DATA = "labeled_in_pool"
"""Key that depends on the data: None in the configuration until the run starts."""


def describe(fit: MinutesChoice, larger: tuple[Size, float] | None) -> str:
    """Return the choice and its reason in one line.

    Args:
        fit: the choice.
        larger: the next larger size and its estimated seconds.
    """
    parts = [f"{size_text(fit.image_size)} px"]
    if fit.feature_views is not None:
        parts.append(f"{fit.feature_views} view" + "s" * (fit.feature_views != 1))
    if fit.steps is not None:
        parts.append(f"{fit.steps:,} steps")
    times = [
        f"{brief(seconds)} per {what}"
        for seconds, what in ((fit.image_seconds, "image"), (fit.step_seconds, "step"))
        if seconds is not None
    ]
    reason = f"measured {', '.join(times)}" if times else "the features are cached"
    if larger is not None:
        reason += f"; {size_text(larger[0])} px would take about {roughly(larger[1])}"
    return f"--minutes {fit.minutes:g}: {', '.join(parts)} ({reason})"


def resolve_minutes(
    config: RunConfig, console: Console
) -> tuple[RunConfig, AutoChoice | None, MinutesChoice | None]:
    """Choose the settings that ``algo: auto`` and ``minutes`` leave open.

    Args:
        config: validated.
        console: prints the choices.

    Returns:
        The configuration to run, and the choices; None for one that the configuration makes.

    Raises:
        UserError: as `prepare`, or the time is too short.
    """
    minutes = config.settings.minutes
    if minutes is None:
        config, choice = resolve_auto(config, console.say, console.reading)
        return config, choice, None
    if config.settings.devices > 1:
        raise ConfigError(
            f"--minutes {minutes:g}: steps of {config.settings.devices} processes are not measured;"
            " set --steps, or leave --devices out"
        )
    start, seconds = time.monotonic(), 60 * minutes
    fitting = Fitting(config)
    choice, ready = None, False
    if config.settings.algo == AUTO:
        first = without_auto(config)
        first_fit, larger = fitting.fit(first, start + SHARE * USED * seconds)
        config = _with_views(config, first_fit.feature_views)
        if larger is not None:  # else fine-tuned candidates use their default
            config = config.with_settings(image_size=first_fit.image_size)
        left = start + SHARE * seconds - time.monotonic()
        config, choice = resolve_auto(config, console.say, console.reading, max(0.0, left))
        ready = bool(choice and choice.trials)
        fit, _ = fitting.fit(config, start + USED * seconds, ready=ready)
        if fit.image_seconds is None:
            fit = fit.model_copy(update={"image_seconds": first_fit.image_seconds})
    else:
        fit, larger = fitting.fit(config, start + USED * seconds)
    console.say(describe(fit, larger), important=True)
    return with_fit(config, fit), choice, fit


def check_same_config(folder: RunFolder, config: RunConfig) -> None:
    """Refuse a folder whose run has another configuration, wherever its output is.

    Args:
        folder: of a run; its record has the choices for ``auto`` and ``minutes``.
        config: validated.

    Raises:
        ConfigError: names the keys that differ, with both values.
    """
    record = folder.read_record()
    config = without_auto(config, record.auto)
    messages, minutes = list[str](), config.settings.minutes
    if record.minutes is not None and minutes is not None:
        config = with_fit(config, record.minutes)
        if minutes != record.minutes.minutes:
            messages.append(f"minutes is {record.minutes.minutes:g} there, {minutes:g} here")
    stored = dict(flatten(folder.read_config().tree()))
    skipped = {*FREE_ON_RESUME, "devices"}  # each start or resume sets them
    expected = {k: v for k, v in flatten(resolve_config(config)[0].tree()) if k not in skipped}
    if expected[FROM_DATA] is None:
        del expected[FROM_DATA]
    messages += [
        f"{key} is {stored.get(key)!r} there, {value!r} here"
        for key, value in expected.items()
        if stored.get(key) != value
    ]
    if messages:
        raise ConfigError(
            f"{display_path(folder.path)}: the run there has another configuration: "
            f"{'; '.join(messages)}"
        )


def with_fit(config: RunConfig, fit: MinutesChoice) -> RunConfig:
    """Return the configuration with the choices in place of ``minutes``."""
    steps = config.settings.steps if fit.steps is None else fit.steps
    config = _with_views(config, fit.feature_views)
    return config.with_settings(image_size=fit.image_size, steps=steps, minutes=None)


def _with_views(config: RunConfig, views: int | None) -> RunConfig:
    if views is None:
        return config
    return config.with_settings(
        model=config.settings.model.model_copy(update={"feature_views": views})
    )


class Fitting:
    """Fit runs on the same images to a time.

    Args:
        config: of the run, validated; the algorithm may differ between calls of `fit`.
    """

    def __init__(self, config: RunConfig) -> None:
        settings = resolve_config(config)[0].settings
        self._share = USED * (SHARE if settings.algo == AUTO else 1.0)
        table = load_table(settings, lazily=True)
        self._table, self._split, _ = split_of(table, settings)
        self._images = len(rows_of(self._split))

    def fit(
        self, config: RunConfig, deadline: float, *, ready: bool = False
    ) -> tuple[MinutesChoice, tuple[Size, float] | None]:
        """Choose the best run that ends before a deadline.

        Args:
            config: of the run; steps and image size do not change if they are set, and its number
                of feature views is the maximum.
            deadline: as a value of `time.monotonic`.
            ready: True if the features are cached.

        Returns:
            The choice, and the next larger image size with its estimated seconds.

        Raises:
            ConfigError: the time is too short.
            UserError: as `prepare`.
        """
        sizes = _sizes(config)
        smallest, base = self._smallest(config, sizes, ready)
        larger: tuple[Size, float] | None = None
        for size in sizes:
            factor = area(size) / area(smallest)
            plan = self._plan(config, size, base.scaled(factor), deadline)
            if size != smallest:
                optimistic = self._plan(config, size, base.scaled(OPTIMISM * factor), deadline)
                speeds = self._speeds(config, size, ready) if optimistic.enough else None
                if speeds is not None:
                    plan = self._plan(config, size, speeds, deadline)
                elif optimistic.enough:  # the backbone does not support this size
                    continue
                else:
                    plan = plan.model_copy(update={"enough": False})
            if plan.enough or size == smallest:
                break
            larger = size, plan.expected_seconds
        left = deadline - time.monotonic()
        if not plan.enough:
            self._refuse_too_little(config, plan, left)
        return plan, larger

    def _smallest(self, config: RunConfig, sizes: list[Size], ready: bool) -> tuple[Size, Speeds]:
        """Return the smallest size that the backbone supports, and its speeds."""
        for size in reversed(sizes):
            if (speeds := self._speeds(config, size, ready)) is not None:
                return size, speeds
        raise AssertionError(sizes)

    def _plan(
        self, config: RunConfig, size: Size, speeds: Speeds, deadline: float
    ) -> MinutesChoice:
        """Return the run that fits at one size, or the smallest useful one if none does."""
        split, settings = self._split, config.settings
        left = deadline - time.monotonic()
        view = len(np.union1d(split.labeled, split.unlabeled)) * speeds.view
        fixed = self._images * (speeds.read + speeds.plain) + view * speeds.fixed_views
        choice = MinutesChoice(
            minutes=settings.minutes or 0.0,
            image_size=size,
            image_seconds=speeds.plain or None,
            expected_seconds=fixed,
            enough=fixed <= left,
        )
        if (costs := speeds.costs) is None:
            return choice
        fixed += (len(split.validation) + len(split.test)) * speeds.predict
        most_views = settings.model.feature_views
        least_views = min(LEAST_VIEWS, most_views) if view else 0

        def total(steps: int) -> float:
            return costs.of(steps, _eval_every(config, steps))

        user_steps = _user_steps(config)
        target = user_steps or settings.steps or OPEN_VALUES["steps"]
        rest = left - fixed - least_views * view
        steps = target
        if total(target) > rest:
            steps = costs.steps_within(max(0.0, rest), lambda n: _eval_every(config, n))
        enough = steps >= (user_steps or target // 2)
        spare = rest - total(max(1, steps))
        views = least_views
        if view and spare > 0:
            views = min(most_views, least_views + int(spare / view))
        update = {
            "steps": steps,
            "feature_views": views if view else None,
            "step_seconds": costs.step,
            "expected_seconds": fixed + views * view + total(steps if enough else target),
            "enough": enough,
        }
        return choice.model_copy(update=update)

    def _refuse_too_little(self, config: RunConfig, fit: MinutesChoice, left: float) -> None:
        user_steps = _user_steps(config)
        if fit.steps is not None and fit.steps >= (user_steps or LEAST_STEPS):
            return
        least = fit.minutes + max(fit.expected_seconds - left, 6) / 60 / self._share
        what = f"{user_steps:,} steps" if user_steps and fit.steps is not None else "training"
        raise ConfigError(
            f"--minutes {fit.minutes:g}: at {size_text(fit.image_size)} px {what} with the "
            f"{self._images:,} images would take about "
            f"{roughly(fit.expected_seconds)}; give at least --minutes "
            f"{math.ceil(10 * least) / 10:.1f}, a smaller --backbone or fewer images"
        )

    def _speeds(self, config: RunConfig, size: Size, ready: bool) -> Speeds | None:
        """Measure at one size; return None if the backbone does not support it."""
        resolved = resolve_config(config.with_settings(image_size=size))[0]
        try:
            return measure_speeds(resolved, self._table, self._split, ready=ready)
        except ModelError:
            if size == _default_size(config):
                raise
            return None


def _user_steps(config: RunConfig) -> int | None:
    """Return the steps that the user set; None for the default, which may be reduced."""
    settings = config.settings
    return settings.steps if "steps" in settings.model_fields_set else None


def _eval_every(config: RunConfig, steps: int) -> int:
    return resolve_config(config.with_settings(steps=max(1, steps)))[0].settings.eval_every


def _default_size(config: RunConfig) -> Size:
    return resolve_config(config)[0].settings.image_size


def _sizes(config: RunConfig) -> list[Size]:
    """Return the image sizes to try, the largest first."""
    default = _default_size(config)
    if config.settings.image_size is not None or isinstance(default, tuple):
        return [default]
    # Most backbones halve the image five times; others divide it into patches of 14.
    unit = next(unit for unit in (32, 14, 16, 1) if default % unit == 0)
    smaller = {default * part // 7 // unit * unit for part in SIZES}
    return [default, *sorted((s for s in smaller if SMALLEST <= s < default), reverse=True)]
