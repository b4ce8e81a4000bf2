"""Searches a task's space for one cell: exhaustively, at random, by hill-climbing; and what a night's campaign needs.

The evaluation is passed in (``evaluate(schedule) -> predicted microseconds, or None when it was refused``), and so is
a proposer, so that a model, a random number generator and a neighbourhood are the same thing to the search. Every
schedule is evaluated at most once. Lower is better everywhere.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from kernels.space import (
    SOURCE_FIELD,
    TABLE_NAME,
    Cell,
    Schedule,
    ScheduleTableError,
    Space,
    TableCell,
    Value,
    parse_schedules,
)

Evaluate = Callable[[Schedule], float | None]
Proposer = Callable[["Search"], Sequence[Schedule]]
Key = TypeVar("Key")

TUNED_SOURCES = ("exhaustive",)
CLIMB_STEP = 4
"""Neighbours that are evaluated before the climb looks for its best again."""


@dataclass
class Search:
    """State of one search over one cell: what was tried, in order, and the best so far."""

    space: Space
    size: int
    evaluate: Evaluate
    tried: dict[tuple[Value, ...], float | None] = field(default_factory=dict)
    best: dict[str, Value] | None = None
    best_us: float = float("inf")

    def key(self, schedule: Schedule) -> tuple[Value, ...]:
        return tuple(schedule[name] for name in self.space.fields)

    def untried(self) -> list[dict[str, Value]]:
        """Legal schedules that were not evaluated yet, in the space's order."""
        return [move for move in self.space.moves(self.size) if self.key(move) not in self.tried]

    def try_one(self, schedule: Schedule) -> float | None:
        """Evaluate a legal schedule once; ValueError names the rule that an illegal one breaks."""
        rule = self.space.violation(schedule, self.size)
        if rule is not None:
            raise ValueError(f"illegal schedule {dict(schedule)}: {rule}")
        key = self.key(schedule)
        if key not in self.tried:
            self.tried[key] = time_us = self.evaluate(schedule)
            if time_us is not None and time_us < self.best_us:
                self.best, self.best_us = dict(schedule), time_us
        return self.tried[key]


def exhaustive(search: Search) -> Search:
    """Evaluate the whole space; the best is then the true optimum under the evaluation."""
    for schedule in search.untried():
        search.try_one(schedule)
    return search


def run(search: Search, proposer: Proposer, budget: int) -> Search:
    """Ask the proposer until ``budget`` distinct schedules were evaluated or it has nothing new."""
    while len(search.tried) < budget:
        fresh = [schedule for schedule in proposer(search) if search.key(schedule) not in search.tried]
        if not fresh:
            break
        for schedule in fresh[: budget - len(search.tried)]:
            search.try_one(schedule)
    return search


def random_proposer(seed: int) -> Proposer:
    """One untried legal schedule at a time, uniformly."""
    generator = np.random.default_rng(seed)

    def propose(search: Search) -> list[dict[str, Value]]:
        left = search.untried()
        return [left[int(generator.integers(len(left)))]] if left else []

    return propose


def hill_climb_proposer(start: Schedule, seed: int) -> Proposer:
    """The nearest untried neighbours of the best schedule so far; where there are none left, a random restart."""
    restart = random_proposer(seed)

    def propose(search: Search) -> Sequence[Schedule]:
        if not search.tried:
            return [start]
        centre = search.best if search.best is not None else start
        near = [move for move in search.space.neighbours(centre, search.size) if search.key(move) not in search.tried]
        return near[:CLIMB_STEP] or restart(search)

    return propose


# --- what a night's campaign needs -----------------------------------------------------------------------------------


def rank(predictions: Mapping[Key, float]) -> list[Key]:
    """Keys from the fastest predicted to the slowest; equal times keep their order."""
    return sorted(predictions, key=lambda key: predictions[key])


def best_beating(incumbent_us: float, results: Mapping[Key, float], min_gain: float) -> Key | None:
    """The fastest result that beats the incumbent by at least the share ``min_gain`` (0.03 is 3%), or None.

    The gain is 1 - predicted / incumbent. ValueError for an incumbent that is not positive.
    """
    if not incumbent_us > 0:
        raise ValueError(f"incumbent_us must be positive, found {incumbent_us!r}")
    for key in rank(results):
        return key if 1 - results[key] / incumbent_us >= min_gain else None
    return None


def campaign_cells(table: Mapping[Cell, TableCell], targets: Iterable[str], sizes: Iterable[int]) -> list[Cell]:
    """Cells a campaign works on, those that nobody has tuned first, then in the table's order."""
    wanted_targets, wanted_sizes = set(targets), set(sizes)
    cells = [cell for cell in table if cell[0] in wanted_targets and cell[1] in wanted_sizes]
    return sorted(cells, key=lambda cell: table[cell].source in TUNED_SOURCES)


def normalised_sha256(source: str) -> str:
    """A hash that two sources share when they differ in comments, layout, docstrings or a cell's label only."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            _drop_docstring(node)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and any(
            isinstance(name, ast.Name) and name.id == TABLE_NAME for name in statement.targets
        ):
            _sort_table(statement, source)
    return hashlib.sha256(ast.unparse(ast.fix_missing_locations(tree)).encode()).hexdigest()


def distinct(sources: Iterable[str], known: Iterable[str] = ()) -> list[str]:
    """Sources in order without those whose normal form came before, or is among the hashes ``known``."""
    seen, kept = set(known), []
    for source in sources:
        sha256 = normalised_sha256(source)
        if sha256 not in seen:
            seen.add(sha256)
            kept.append(source)
    return kept


def _drop_docstring(node: Any) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body = node.body[1:] or [ast.Pass()]


def _sort_table(statement: ast.Assign, source: str) -> None:
    """Put the cells in order and leave their labels out: where a schedule comes from does not change the program."""
    try:
        cells = parse_schedules(source)
    except ScheduleTableError:
        return
    table = {key: dict(sorted(cells[key].schedule.items())) for key in sorted(cells)}
    assert all(SOURCE_FIELD not in schedule for schedule in table.values())
    statement.value = ast.parse(repr(table), mode="eval").body
