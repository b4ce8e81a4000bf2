"""``nightshift posttrain``: one successor now, outside of the schedule."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.common import JsonOption, LabOption, open_lab
from cli.durations import seconds
from workspace.errors import UserError


def posttrain(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A file of recipes/, without .toml.")],
    parent: Annotated[str | None, typer.Option(metavar="MODEL", help="Train from it; else the lab's subject.")] = None,
    budget: Annotated[str | None, typer.Option(help="Wall clock, e.g. 15m; else the settings'.")] = None,
    profile: Annotated[str, typer.Option(help="Settings profile, e.g. smoke.")] = "default",
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Survey, data, training and judgement of one successor: a night of nothing else. It waits for review."""
    opened = open_lab(lab, profile)
    known = sorted(path.stem for path in (opened.root / "recipes").glob("*.toml"))
    if recipe not in known:
        raise UserError("no such recipe", field="RECIPE", value=recipe, allowed=", ".join(known) or "none yet")
    from cli.night import carry
    from flows.errand import train
    from model.checkpoints import get

    errand = train(recipe, get(opened, parent) if parent else None)
    budget_s = seconds(budget, "--budget") if budget else None
    carry(opened, as_json, budget_s=budget_s, errand=errand, again=f"nightshift posttrain {recipe}")
