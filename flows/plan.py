"""What fits into the time that is left: training steps and judged items, decided once a night and stated.

The estimates are crude (tokens over a rate that earlier nights of this lab measured); a night that has time for all of
it changes nothing.  Fewer guard items mean a wider margin: the bound of a paired difference shrinks with sqrt(n).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sqlmodel import col, select

from flows.context import NightRun
from model.dataset import DataRecipe
from model.recipe import Recipe
from workspace.tables import Experiment

TRAIN_TOKENS_PER_S = 170.0  # LoRA on the 135M model, two cores; replaced by what this lab measured last
TARGET_ROW_TOKENS, ANCHOR_ROW_TOKENS = 25, 60
ANCHOR_COST = 1.35  # the parent's forward pass besides the successor's
TRAIN_START_S = 25.0  # container, imports, loading, merging
JUDGE_S_PER_ITEM = 0.15
DATA_S_PER_REPLY = 0.25
MIN_STEPS, MIN_GUARDS = 2, 8


@dataclass(frozen=True)
class Plan:
    """``margin`` is the guards' margin at ``guard_items``; ``shortened`` says that the budget forced it."""

    steps: int
    guard_items: int
    margin: float
    shortened: bool
    estimate_s: float
    left_s: float


def plan(run: NightRun, recipe: Recipe, data: DataRecipe) -> Plan:
    """The night's plan, made before its data set and kept, so that a resumed night does the same."""
    stored = run.once("plan", "night", lambda: asdict(_plan(run, recipe, data)))
    return Plan(**stored)


def _plan(run: NightRun, recipe: Recipe, data: DataRecipe) -> Plan:
    judge = run.settings.judge
    train_s = recipe.steps * step_tokens(recipe) / _train_rate(run)
    judge_s = 2 * (judge.target_items + judge.guard_items) * JUDGE_S_PER_ITEM
    data_s = (data.problems * data.samples + data.replay_prompts) * DATA_S_PER_REPLY
    left_s = run.left_s() - data_s - TRAIN_START_S
    fits = max(min(1.0, left_s / (train_s + judge_s)), 0.0)
    guards = max(MIN_GUARDS, math.ceil(judge.guard_items * fits))
    steps = max(MIN_STEPS, math.ceil(recipe.steps * fits))
    margin = min(0.5, round(judge.margin * math.sqrt(judge.guard_items / guards), 3))
    shortened = fits < 1.0
    if shortened:
        run.flag(
            f"the budget leaves {max(left_s, 0):.0f} s of about {train_s + judge_s:.0f} s: "
            f"{steps} of {recipe.steps} steps, {guards} of {judge.guard_items} guard items, "
            f"so the margin of the guards is {margin:.1%}, not {judge.margin:.1%}"
        )
    return Plan(steps, guards, margin, shortened, train_s + judge_s, left_s)


def step_tokens(recipe: Recipe) -> float:
    """Tokens of one step, anchor rows counted with their second forward pass."""
    anchors = (recipe.replay_rows + recipe.prose_rows) * ANCHOR_ROW_TOKENS * ANCHOR_COST
    return recipe.target_rows * TARGET_ROW_TOKENS + anchors


def _train_rate(run: NightRun) -> float:
    """Tokens per second of this lab's last training, or the constant."""
    with run.lab.ledger.read() as session:
        rows = session.exec(
            select(Experiment)
            .where(Experiment.kind == "posttrain", Experiment.status == "done", Experiment.night_id < run.id)
            .order_by(col(Experiment.id).desc())
            .limit(1)
        ).all()
    result: dict[str, Any] = rows[0].result if rows else {}
    return float(result.get("planned_tokens_per_s") or TRAIN_TOKENS_PER_S)
