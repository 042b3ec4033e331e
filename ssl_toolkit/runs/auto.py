"""Choose the algorithm of a run by cross-validation on its labels: ``--algo auto``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ssl_toolkit import registry
from ssl_toolkit.config.defaults import AUTO
from ssl_toolkit.config.loading import Layer, RunConfig, validate
from ssl_toolkit.config.merging import Tree
from ssl_toolkit.data.cache import Progress
from ssl_toolkit.engine.experiment import Experiment, prepare
from ssl_toolkit.engine.multilabel import check_task
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.files import holds_features
from ssl_toolkit.interfaces import Algorithm, FeatureAlgorithm
from ssl_toolkit.models.freezing import has_batchnorm
from ssl_toolkit.runs.auto_trials import (
    HELD_OUT,
    LEVEL,
    Trial,
    cpu_seconds,
    feature_trial,
    fine_tuning_trial,
)
from ssl_toolkit.runs.record import AutoChoice, Candidate

Announce = Callable[[str], None]

FOLDS = 5
BUDGET = 300.0
"""Maximum CPU seconds for the choice if ``minutes`` is not set; a run takes as long as a trial."""
GOOD_ENOUGH = 0.5
"""Accuracy, rescaled to 0 at chance and 1 at perfect, from which frozen features suffice."""
FINE_TUNED: Tree = {"model": {"freeze": "bn"}}
"""Settings that a fine-tuned candidate overrides; `recipes.FINE_TUNING` has its other defaults."""
WITHOUT_BATCHNORM: Tree = {"model": {"freeze": "none"}}
"""`FINE_TUNED` for a backbone without BatchNorm."""


def describe(choice: AutoChoice) -> list[str]:
    """Return a line for each kind of trial, and one for the choice."""
    lines = []
    frozen = [trial for trial in choice.trials if not trial.trains_backbone]
    if frozen:
        scores = ", ".join(f"{trial.name} {100 * trial.accuracy:.1f} %" for trial in frozen)
        seconds = sum(trial.seconds for trial in frozen)
        count, images = frozen[0].count, frozen[0].images
        test = f"{count} {images}"
        if images == HELD_OUT:
            test = f"{choice.folds}-fold cross-validation on the {count} labels"
        lines.append(f"auto: {test}: {scores} ({seconds:.0f} s)")
    lines += [
        f"auto: {t.name}: {100 * t.accuracy:.1f} % of {t.count} {t.images} ({t.seconds:.0f} s)"
        for t in choice.trials[len(frozen) :]
    ]
    if choice.skipped:
        names = ", ".join(choice.skipped)
        lines.append(f"auto: no time to try {names}; a larger --minutes allows it")
    return [*lines, f"auto: uses {choice.name}: {choice.reason}"]


def _choice(candidate: Candidate, reason: str, **results: Any) -> AutoChoice:
    return AutoChoice(**dict(candidate), reason=reason, **results)


def candidates(pretrained: bool, features: bool = False) -> list[Candidate]:
    """Return the candidates, the preferred one first.

    With a pre-trained backbone the algorithms that fit a head to frozen features come first; the
    others train the whole backbone, by the settings of `FINE_TUNING`.

    Args:
        pretrained: the backbone starts from weights.
        features: the data are features; then only algorithms that fit a head to features are
            candidates, since the others learn from augmented views.
    """
    ranked = []
    for entry in registry.entries("algorithms"):
        plugin, _ = registry.attempt(entry)
        if not (plugin and issubclass(plugin, Algorithm)) or plugin.uses_hidden_labels:
            continue
        if features and not issubclass(plugin, FeatureAlgorithm):
            continue
        rank = plugin.auto_rank if pretrained else plugin.auto_rank_from_scratch
        if rank <= 0:
            continue
        candidate = Candidate(name=entry.name, algorithm=entry.name)
        if pretrained and not issubclass(plugin, FeatureAlgorithm):
            overrides = FINE_TUNED | {entry.name: dict(plugin.auto_options)}
            name = f"{entry.name} (fine-tuned)"
            candidate = Candidate(name=name, algorithm=entry.name, overrides=overrides)
        ranked.append(((candidate.trains_backbone, -rank, entry.name), candidate))
    return [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0])]


def choose(
    config: RunConfig,
    *,
    announce: Announce = lambda line: None,
    progress: Progress | None = None,
    budget: float | None = None,
) -> tuple[RunConfig, AutoChoice]:
    """Return the configuration with the chosen algorithm in place of ``auto``.

    Without pre-trained weights, the preferred algorithm is selected: cross-validation would train
    each one from scratch, several times. With a pre-trained backbone, candidates are scored on the
    validation images if there are at least as many as labels, otherwise by cross-validation on the
    labels, where held-out images stay in the pool without their labels. Test images are not used.

    1. Compare the algorithms for frozen features. Select the preferred one unless another is more
       accurate and an exact sign test on the images where the two differ is significant: with few
       labels, the best score is mostly luck.
    2. If its accuracy is low (`GOOD_ENOUGH`), the features do not suit these images. Then train
       each fine-tuned candidate that the time allows. Select the first one that is more accurate
       than frozen features, and a later one only if the sign test finds it better than the best so
       far. On labels, one fold is held out, up to `FINE_TUNING_FOLDS` times.

    Args:
        config: validated, its algorithm ``auto``.
        announce: called with a line before each long step.
        progress: called while images are read.
        budget: CPU seconds for the choice; None for `BUDGET`.

    Raises:
        UserError: as `prepare`, or there is no candidate.
    """
    check_task(config.settings)
    features = holds_features(config.settings.data)
    pretrained = config.settings.pretrained or features
    ranked = candidates(pretrained, features)
    if not ranked:
        raise ConfigError("--algo auto: no installed algorithm is a candidate; name one")
    if not pretrained:
        choice = _choice(ranked[0], "the default for training from scratch")
        return with_candidate(config, ranked[0]), choice
    frozen = [candidate for candidate in ranked if not candidate.trains_backbone]
    first = (frozen or ranked)[0]
    experiment = prepare(with_candidate(config, first), progress=progress)
    enough = len(experiment.split.validation) >= len(experiment.split.labeled)
    folds = [] if enough else list(_folds(experiment))
    if not (enough or folds) or not frozen:
        reason = "the default; cross-validation needs two labels of each class"
        return with_candidate(config, first), _choice(first, reason if frozen else "the only kind")
    limit = cpu_seconds() + (BUDGET if budget is None else budget)
    experiment.trainer.start()
    trials = [feature_trial(with_candidate(config, c), c, experiment, folds) for c in frozen]
    best, reason = _best(trials)
    skipped: list[str] = []
    for candidate in _fine_tuned(config, experiment, ranked, best):
        announce(
            f"auto: {best.name} has an accuracy of {100 * best.accuracy():.1f} % on the "
            f"{best.images}; trying {candidate.name} …"
        )
        trial_config = with_candidate(config, candidate)
        trial = fine_tuning_trial(trial_config, candidate, experiment, folds, best, limit)
        if trial is None:
            skipped.append(candidate.name)
            continue
        trials.append(trial)
        p = trial.p_value(best)
        if p < LEVEL or (trial.leads(best) and not best.candidate.trains_backbone):
            reason = _comparison(trial, best, p)
            best = trial
    choice = _choice(
        best.candidate,
        reason,
        trials=tuple(trial.record() for trial in trials),
        folds=len(folds),
        skipped=tuple(skipped),
    )
    return with_candidate(config, best.candidate), choice


def _fine_tuned(
    config: RunConfig, experiment: Experiment, ranked: Sequence[Candidate], best: Trial
) -> list[Candidate]:
    """Return the candidates that train the backbone; none if frozen features suffice."""
    chance = 1 / len(experiment.classes)
    sufficient = best.accuracy() >= chance + GOOD_ENOUGH * (1 - chance)
    if sufficient or config.settings.model.freeze != "auto":
        return []
    result = [candidate for candidate in ranked if candidate.trains_backbone]
    if has_batchnorm(experiment.trainer.classifier.backbone):
        return result
    return [c.model_copy(update={"overrides": c.overrides | WITHOUT_BATCHNORM}) for c in result]


def with_candidate(config: RunConfig, candidate: Candidate) -> RunConfig:
    """Return the configuration with the candidate's algorithm, its defaults and its overrides."""
    settings = config.settings.model_dump(mode="json", exclude_unset=True)
    layers = [candidate.overrides, settings, {"algo": candidate.algorithm}]
    return validate([Layer("--algo auto", tree) for tree in layers])


def without_auto(config: RunConfig, candidate: Candidate | None = None) -> RunConfig:
    """Return the configuration with an algorithm in place of ``auto``, if it is set.

    Args:
        config: validated.
        candidate: the choice at the start of the run; None for the preferred algorithm.
    """
    if config.settings.algo != AUTO:
        return config
    if candidate is not None:
        return with_candidate(config, candidate)
    features = holds_features(config.settings.data)
    ranked = candidates(config.settings.pretrained or features, features)
    return with_candidate(config, ranked[0]) if ranked else config


def as_row(config: RunConfig) -> RunConfig:
    """Return the configuration of a row whose ``auto`` uses the settings that rows share.

    Args:
        config: validated.
    """
    if config.settings.algo != AUTO:
        return config
    return replace(config, settings=without_auto(config).with_settings(algo=AUTO).settings)


def _folds(experiment: Experiment) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield indices of the labels to train and to test on; none if a class has a single label."""
    from sklearn.model_selection import StratifiedKFold

    labels = experiment.table.labels[experiment.split.labeled]
    least = int(np.bincount(labels)[np.unique(labels)].min())
    if least >= 2:
        folds = StratifiedKFold(min(FOLDS, least), shuffle=True, random_state=0)
        yield from folds.split(labels, labels)


def _best(trials: Sequence[Trial]) -> tuple[Trial, str]:
    """Return the preferred candidate, or the most significantly better one, and the reason."""
    preferred = trials[0]
    best, least = preferred, LEVEL
    for trial in trials[1:]:
        p = trial.p_value(preferred)
        if p < least:
            best, least = trial, p
    if best is preferred:
        lead = max(trial.accuracy() for trial in trials) > preferred.accuracy()
        rest = "no other is significantly better" if lead else "no other is better"
        return preferred, f"the default, and {rest}"
    return best, _comparison(best, preferred, least)


def _comparison(trial: Trial, other: Trial, p: float) -> str:
    both = trial.tested & other.tested
    return (
        f"its accuracy on {int(both.sum())} {trial.images} is {100 * trial.accuracy(both):.1f} %, "
        f"that of {other.name} {100 * other.accuracy(both):.1f} % (sign test, p = {p:.2g})"
    )


def resolve_auto(
    config: RunConfig,
    announce: Announce,
    progress: Progress | None = None,
    budget: float | None = None,
) -> tuple[RunConfig, AutoChoice | None]:
    """Return the configuration to run, and the choice of ``algo: auto``, if it is set.

    Args:
        config: validated.
        announce: called with each line to print.
        progress: called while images are read.
        budget: CPU seconds for the choice; None for `BUDGET`.
    """
    if config.settings.algo != AUTO:
        return config, None
    config, choice = choose(config, announce=announce, progress=progress, budget=budget)
    for line in describe(choice):
        announce(line)
    return config, choice
