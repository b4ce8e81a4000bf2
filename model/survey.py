"""Where is the model weak, and which weakness is worth a night?

Every family is evaluated with standard errors, then ranked by room to learn times a signal that it can be learnt.
Nothing is tied to one family: what is excluded or unusable gives way to the next, with its reason written down.

- room: 1 - strict accuracy.
- signal: min(1, (excess + lenient / 10) / 0.1), where excess is (strict - chance) / (1 - chance).
  A model that is never right has nothing of its own to learn from, one that is right one time in ten has plenty.

Not covered: what a night costs per family (replies of all shipped families are short).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.evals import EvalResult, Progress, TextModel, derive_seed, draw_items, run_evals
from model.families import DistinctItems, count_distinct
from model.items import Eval, Item
from workspace import stats

CEILING = 0.9
FULL_SIGNAL = 0.1
LENIENT_WEIGHT = 0.1


@dataclass(frozen=True)
class SurveyRow:
    """One family, one model. ``distinct_items`` is the lower bound of how many different items there are."""

    family: str
    title: str
    kind: str
    n: int
    strict: float
    stderr: float
    lenient: float
    lenient_stderr: float
    chance: float
    distinct_items: int
    distinct: DistinctItems
    tokens_out: int
    wall_s: float

    def to_json(self) -> dict[str, Any]:
        return {
            "family": self.family, "title": self.title, "kind": self.kind, "n": self.n, "strict": self.strict,
            "stderr": self.stderr, "lenient": self.lenient, "lenient_stderr": self.lenient_stderr,
            "chance": self.chance, "distinct_items": self.distinct_items, "distinct": self.distinct.to_json(),
            "tokens_out": self.tokens_out, "wall_s": round(self.wall_s, 3),
        }  # fmt: skip


@dataclass(frozen=True)
class Survey:
    """The rows, and what they were computed from: items (no data set may train on them) and replies."""

    rows: list[SurveyRow]
    items: dict[str, list[Item]]
    results: dict[str, EvalResult]


@dataclass(frozen=True)
class Choice:
    """One family's place in the ranking. ``reason`` is "usable" or what speaks against it."""

    row: SurveyRow
    usable: bool
    reason: str
    worth: float

    def to_json(self) -> dict[str, Any]:
        return {**self.row.to_json(), "usable": self.usable, "reason": self.reason, "worth": round(self.worth, 4)}


def survey(
    model: TextModel,
    evals: Mapping[str, Eval],
    items_per_family: int,
    seed: int,
    *,
    needed_items: int = 0,
    exclude: Collection[str] = (),
    on_progress: Progress | None = None,
) -> Survey:
    """Evaluate every family on ``items_per_family`` fresh items, all in one batched call.

    ``needed_items`` is how far the number of distinct items is looked into; ``exclude`` are keys not to be drawn.
    """
    items = {
        name: draw_items(each, derive_seed(seed, "survey", name), items_per_family, exclude)
        for name, each in evals.items()
    }
    results = run_evals(model, [(each, items[name]) for name, each in evals.items()], on_progress)
    rows = []
    for (name, each), result in zip(evals.items(), results, strict=True):
        distinct = count_distinct(each, needed_items)
        rows.append(
            SurveyRow(
                family=name, title=each.TITLE, kind=each.KIND, n=len(result.rows), strict=result.accuracy,
                stderr=result.stderr, lenient=result.lenient, lenient_stderr=result.lenient_stderr,
                chance=float(getattr(each, "CHANCE", 0.0)), distinct_items=int(distinct.low), distinct=distinct,
                tokens_out=result.tokens_out, wall_s=result.wall_s,
            )
        )  # fmt: skip
    return Survey(rows, items, dict(zip(evals, results, strict=True)))


def choose_weakness(rows: Sequence[SurveyRow], needed_items: int, excluded: Collection[str] = ()) -> list[Choice]:
    """All rows, the most worthwhile usable one first, each with its reason; those that are unusable come last.

    ``needed_items`` is the factor (20) times the items that a night draws for training and judging.
    """
    choices = [_choice(row, needed_items, excluded) for row in rows]
    return sorted(choices, key=lambda choice: (not choice.usable, -choice.worth, choice.row.family))


def chosen(ranking: Sequence[Choice]) -> Choice | None:
    """The first usable one, if any."""
    return ranking[0] if ranking and ranking[0].usable else None


def worth(row: SurveyRow) -> float:
    """Room to learn times the signal that it can be learnt."""
    if row.n == 0:
        return 0.0
    return (1 - row.strict) * min(1.0, (_excess(row) + LENIENT_WEIGHT * row.lenient) / FULL_SIGNAL)


def _excess(row: SurveyRow) -> float:
    """Accuracy beyond chance, as a share of what chance leaves."""
    return max(0.0, (row.strict - row.chance) / (1 - row.chance)) if row.chance < 1 else 0.0


def _choice(row: SurveyRow, needed_items: int, excluded: Collection[str]) -> Choice:
    value = worth(row)
    for refuses in _REFUSALS:
        reason = refuses(row, needed_items, excluded)
        if reason:
            return Choice(row, False, reason, value)
    return Choice(row, True, "usable", value)


def _refuse_excluded(row: SurveyRow, _needed: int, excluded: Collection[str]) -> str:
    return "excluded in the settings" if row.family in excluded else ""


def _refuse_empty(row: SurveyRow, _needed: int, _excluded: Collection[str]) -> str:
    return "no fresh items left" if row.n == 0 else ""


def _refuse_few_items(row: SurveyRow, needed: int, _excluded: Collection[str]) -> str:
    found = row.distinct_items
    return f"too few distinct items: {found} < {needed}" if found < needed else ""


def _refuse_ceiling(row: SurveyRow, _needed: int, _excluded: Collection[str]) -> str:
    high = stats.wilson(round(row.strict * row.n), row.n)[1]
    if row.strict >= CEILING or (row.strict > 0.75 and high >= 0.95):
        return f"at ceiling: {row.strict:.0%} right"
    return ""


def _refuse_floor(row: SurveyRow, _needed: int, _excluded: Collection[str]) -> str:
    right, credit = round(row.strict * row.n), row.lenient * row.n
    if right < 1 and credit < 1:
        return f"parent at floor: {right} of {row.n} right and {credit:.1f} of lenient credit, nothing to sample from"
    return ""


def _refuse_chance(row: SurveyRow, _needed: int, _excluded: Collection[str]) -> str:
    if row.chance == 0:
        return ""
    low = stats.wilson(round(row.strict * row.n), row.n, confidence=0.9)[0]
    if row.chance >= 0.2 and low <= row.chance:
        return f"parent at chance: {row.strict:.0%} right, always giving one answer scores {row.chance:.0%}"
    return ""


_REFUSALS: tuple[Callable[[SurveyRow, int, Collection[str]], str], ...] = (
    _refuse_excluded,
    _refuse_empty,
    _refuse_few_items,
    _refuse_ceiling,
    _refuse_floor,
    _refuse_chance,
)
