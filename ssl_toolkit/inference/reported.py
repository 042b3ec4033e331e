"""The weights that a run reports, from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ssl_toolkit.engine.checkpoints import load_checkpoint
from ssl_toolkit.errors import ModelError, ToolkitError
from ssl_toolkit.models.adapters import merge_adapters
from ssl_toolkit.models.classifier import Classifier
from ssl_toolkit.models.export import check_description
from ssl_toolkit.models.factory import rebuild
from ssl_toolkit.models.predictor import Predictor, restore_predictor
from ssl_toolkit.text import display_path


def reported_weights(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the weights to evaluate: the best, else the averaged, else the live ones.

    Args:
        state: Result of `load_checkpoint`.
    """
    average = state.get("ema") or {}
    weights: dict[str, Tensor] = state.get("weights") or average.get("module") or state["model"]
    return weights


def reported_algorithm(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of the algorithm that belong to `reported_weights`.

    Args:
        state: Result of `load_checkpoint`.
    """
    averages = (state.get("averaged") or {}).get("module", {})
    # Names of averaged modules have slashes in place of dots (see `by_path`).
    averages = {name.replace("/", "."): value for name, value in averages.items()}
    values = {**state.get("algorithm_state", {}), **averages}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def from_checkpoint(path: Path) -> tuple[Classifier | Predictor, dict[str, Any]]:
    """Return the model of a checkpoint with the weights to evaluate, and its description.

    Args:
        path: Path to the checkpoint.

    Raises:
        ModelError: It is not trained yet, or damaged.
        PluginError: A package is not installed.
    """
    state = load_checkpoint(path)
    if state.get("step") == 0:
        raise ModelError(
            f"{display_path(path)}: the checkpoint is not trained yet; wait for the next one"
        )
    check_description(path, state)
    try:
        classifier, _ = rebuild(state)
        # The statistics of the normalization are among the weights.
        classifier.load_state_dict(reported_weights(state))
        if state.get("predict"):
            tensors = reported_algorithm(state)
            predictor = restore_predictor(classifier, state, tensors, display_path(path))
            merge_adapters(predictor)
            return predictor, state
        merge_adapters(classifier)
    except ToolkitError:
        raise
    except Exception as error:  # weights of another network raise almost any exception
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{display_path(path)}: its weights can't be used: {reason}") from error
    return classifier, state
