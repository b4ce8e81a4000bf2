"""What fits into the time that is left: judged items before the data is made, training time once it is.

The survey has just shown how long this machine takes for a reply tonight; generation and judgement are reckoned from
that, and the trainer counts its steps by the pace of its first ones.  Judged items come before steps: fewer guard
items mean a wider margin (the bound of a paired difference shrinks with sqrt(n)), fewer steps only a smaller gain.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from flows.context import NightRun
from model.dataset import DataRecipe
from model.recipe import Recipe
from workspace.experiments import stored_result

REPLY_S = 0.15  # of one short reply in a large batch, where no survey says
JUDGE_SHARE = 0.7  # of a survey's reply: guards are answered in fewer tokens (0.67 and 0.68 in two nights)
STEP_REPLIES = 40.0  # a step of the default recipe takes about as long as so many replies
TRAIN_START_S = 30.0  # container, imports, loading, merging, registering
END_S = 40.0  # verdict, report, and what goes slower than reckoned
MIN_GUARDS = 8


@dataclass(frozen=True)
class Plan:
    """``margin`` is the guards' margin at ``guard_items``; ``shortened`` says that the budget forced it.

    ``judge_s`` is what judging them will take.
    """

    guard_items: int
    margin: float
    shortened: bool
    judge_s: float
    left_s: float


def plan(run: NightRun, recipe: Recipe, data: DataRecipe) -> Plan:
    """The night's plan, made before its data set and kept, so that a resumed night does the same."""
    stored = run.once("plan", "night", lambda: asdict(_plan(run, recipe, data)))
    return Plan(**stored)


def train_s(run: NightRun, planned: Plan) -> float:
    """Seconds for the training steps, so that what they make can still be judged tonight."""
    return max(1.0, run.left_s() - TRAIN_START_S - planned.judge_s - END_S)


def _plan(run: NightRun, recipe: Recipe, data: DataRecipe) -> Plan:
    judge, reply_s = run.settings.judge, _reply_s(run)
    judged_s = JUDGE_SHARE * reply_s
    data_s = (1.5 * data.problems * data.samples + 2 * data.replay_prompts) * reply_s
    least_train_s = min(recipe.min_steps, recipe.steps) * STEP_REPLIES * reply_s
    left_s = run.left_s() - data_s - TRAIN_START_S - least_train_s - END_S
    wanted_s = 2 * (judge.target_items + judge.guard_items) * judged_s
    guards = judge.guard_items
    if wanted_s > left_s:
        guards = max(MIN_GUARDS, min(guards, int(left_s / (2 * judged_s)) - judge.target_items))
    margin = min(0.5, round(judge.margin * math.sqrt(judge.guard_items / guards), 3))
    if guards < judge.guard_items:
        run.flag(
            f"the budget leaves {max(left_s, 0):.0f} s for the judgement, which takes about {wanted_s:.0f} s: "
            f"{guards} of {judge.guard_items} guard items, so the margin of the guards is {margin:.1%}, "
            f"not {judge.margin:.1%}"
        )
    judge_s = 2 * (judge.target_items + guards) * judged_s
    return Plan(guards, margin, guards < judge.guard_items, round(judge_s, 1), round(left_s, 1))


def _reply_s(run: NightRun) -> float:
    """Seconds of one reply in tonight's survey, or the constant."""
    survey = stored_result(run.lab.ledger, run.id, "survey", "survey") or {}
    rows = survey.get("rows", [])
    count = sum(row["n"] for row in rows)
    return float(sum(row["wall_s"] for row in rows) / count) if count else REPLY_S
