"""The night's recipe: both halves, as they are at the base commit."""

from __future__ import annotations

from flows.context import NightRun
from model.dataset import DataRecipe
from model.recipe import Recipe, load_recipe


def recipe_text(run: NightRun) -> str:
    """The whole file."""
    return (run.base / "recipes" / f"{run.settings.data.recipe}.toml").read_text(encoding="utf-8")


def data_recipe(run: NightRun) -> DataRecipe:
    """The ``[data]`` half."""
    return DataRecipe.from_toml(recipe_text(run), f"recipes/{run.settings.data.recipe}.toml")


def night_recipe(run: NightRun) -> Recipe:
    """The ``[posttrain]`` half."""
    return load_recipe(run.base / "recipes" / f"{run.settings.data.recipe}.toml")
