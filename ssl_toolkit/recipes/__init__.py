"""Configurations of the rows of published tables, with the published numbers."""

from __future__ import annotations

from ssl_toolkit.recipes.load import Recipe, find_recipe, load_recipes, recipe_name
from ssl_toolkit.recipes.schema import Published

__all__ = ["Published", "Recipe", "find_recipe", "load_recipes", "recipe_name"]
