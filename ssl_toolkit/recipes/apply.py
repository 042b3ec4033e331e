"""Use a recipe under the settings of a user."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from ssl_toolkit.config.merging import Tree
from ssl_toolkit.config.options import Options, is_in_steps
from ssl_toolkit.config.plugin_names import section_of
from ssl_toolkit.config.run_defaults import without_unused_options
from ssl_toolkit.errors import ConfigError
from ssl_toolkit.recipes.load import AUTOMATIC_KEYS, Recipe, find_recipe, load_recipes

Chosen = TypeVar("Chosen", bound=Options)

LABEL_KEYS = frozenset({"labels", "labels_per_class", "num_labels"})
"""Settings of which one of the user's replaces any of a recipe's."""


def automatic_recipe(tree: Tree) -> Recipe | None:
    """Return the recipe that settings of the user choose, if there is one.

    Args:
        tree: settings of the user.
    """
    if not all(tree.get(key) for key in AUTOMATIC_KEYS):
        return None
    values = [str(tree[key]).lower() for key in AUTOMATIC_KEYS]
    recipes = (recipe for recipe in load_recipes().values() if recipe.automatic)
    return next((r for r in recipes if [r.settings[key] for key in AUTOMATIC_KEYS] == values), None)


def settings_under(recipe: Recipe, tree: Tree) -> Tree:
    """Return the settings of a recipe without those that the user's replace as a whole.

    Args:
        recipe: any recipe.
        tree: settings of the user.
    """
    settings = without_unused_options(recipe.settings, tree)
    algo = settings["algo"]
    replaced = {"dataset"} if tree.get("data") else set()
    if section_of(str(tree.get("algo") or algo)) != algo:
        replaced.add(algo)
    if any(tree.get(key) for key in LABEL_KEYS):
        replaced |= LABEL_KEYS
    return {key: value for key, value in settings.items() if key not in replaced}


def scaled(
    options: Chosen,
    scale: float,
    unscaled: Collection[tuple[str, ...]],
    prefix: tuple[str, ...] = (),
) -> Chosen:
    """Return options with those in steps multiplied by a factor.

    Args:
        options: settings, or the options of an algorithm.
        scale: the factor.
        unscaled: paths of keys to leave as they are, which the user set.
        prefix: path of the options.
    """
    update: dict[str, Any] = {}
    for name, field in type(options).model_fields.items():
        value, path = getattr(options, name), (*prefix, name)
        if isinstance(value, Options):
            update[name] = scaled(value, scale, unscaled, path)
        elif is_in_steps(field) and value and path not in unscaled:
            update[name] = max(1, round(value * scale))
    return options.model_copy(update=update)


def check_initial_weights(row: str | None, weights: str | None) -> None:
    """Check that a run has the initial weights that its recipe takes from another row.

    Args:
        row: recipe of the run.
        weights: path to its initial weights.

    Raises:
        ConfigError: they are missing.
    """
    made_by = find_recipe(row).weights_of if row is not None else None
    if made_by is not None and weights is None:
        raise ConfigError(
            f"--recipe {row}: starts from the weights of {made_by}, which are missing; run "
            f"`ssl-toolkit run --recipe {made_by} --output FOLDER` first, and use "
            "--weights FOLDER/model/model.safetensors"
        )
