"""The kernel author: proposes moves, each one new schedule for one cell (target, size) of a kernel's table.

The model draws schedules under a grammar; what repeats, breaks a rule of the space or is known to fail is dropped.  A
small model mostly repeats the schedule that it is shown, so the rest is taken from all legal schedules in the order of
the likelihood that the model gives them.

Not covered: whole-file rewrites; whether a move is right or fast (the judge's business).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from agents.ask import draw_json, rank_json, role_prompt
from agents.record import Recorder
from kernels.space import Cell, Schedule, Value, parse_schedules
from kernels.task import Task
from model.evals import derive_seed
from model.items import Message, Part, user
from model.language_model import LanguageModel

ROLE = "kernel_author"
ROUNDS = 2  # draws per cell; a second round only when the first gave less than half of what is wanted
TEMPERATURE = 1.0
MAX_RANKED = 48  # legal schedules that are ranked, of a larger space a seeded sample: each costs a forward pass
MAX_FAILURES_SHOWN = 6
MAX_FAILURE_CHARS = 160


Cost = Mapping[str, float | int | str]  # predicted terms of the incumbent in one cell, units in the names


@dataclass(frozen=True)
class FailedMove:
    """A move that was refused before, with the reason's code. It is shown to the model and not proposed again."""

    cell: Cell
    schedule: Mapping[str, Value]
    reason: str


@dataclass(frozen=True)
class Move:
    """One new schedule for one cell; ``how`` says whether it was "drawn" or "ranked"."""

    target: str
    size: int
    schedule: dict[str, Value]
    model_call_id: int
    how: str

    @property
    def cell(self) -> Cell:
        return self.target, self.size

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Move:
        return Move(row["target"], row["size"], dict(row["schedule"]), row["model_call_id"], row["how"])


def propose_moves(
    model: LanguageModel,
    task: Task,
    incumbent_source: str,
    cells: Sequence[Cell],
    failures: Sequence[FailedMove | str],
    count: int,
    seed: int,
    recorder: Recorder,
    *,
    costs: Mapping[Cell, Cost] | None = None,
) -> list[Move]:
    """``count`` distinct legal moves (fewer only if the cells have no more), spread evenly over the cells.

    None equals the incumbent's schedule of its cell or a failed move; failures given as text are shown only.
    ``seed`` is below 2^63; the same arguments give the same moves.
    Raises ScheduleTableError if the incumbent has no table, BudgetExceeded before a call that the budget cannot cover.
    """
    table = {cell: entry.schedule for cell, entry in parse_schedules(incumbent_source).items()}
    failed = [each for each in failures if isinstance(each, FailedMove)]
    texts = [each for each in failures if isinstance(each, str)][:MAX_FAILURES_SHOWN]
    open_moves = [_open_moves(task, cell, table.get(cell), failed) for cell in cells]
    per_cell: list[list[Move]] = []
    for place, (cell, wanted) in enumerate(zip(cells, _shares(open_moves, count), strict=True)):
        if wanted:
            here = [each for each in failed if each.cell == cell][-MAX_FAILURES_SHOWN:]
            texts_here = texts + [f"{each.reason}: {_spell(each.schedule, task)}" for each in here]
            conversation = _conversation(task, cell, table.get(cell), (costs or {}).get(cell, {}), texts_here)
            author = _Author(model, task, cell, conversation, recorder, derive_seed(seed, *cell) % 2**63)
            per_cell.append(author.moves(open_moves[place], wanted))
    return [moves[at] for at in range(max(map(len, per_cell), default=0)) for moves in per_cell if at < len(moves)]


def _open_moves(
    task: Task, cell: Cell, incumbent: Schedule | None, failed: Iterable[FailedMove]
) -> list[dict[str, Value]]:
    """Legal schedules of the cell that are neither the incumbent's nor known to fail."""
    closed = {_key(each.schedule) for each in failed if each.cell == cell}
    if incumbent is not None:
        closed.add(_key(incumbent))
    return [schedule for schedule in task.space.moves(cell[1]) if _key(schedule) not in closed]


def _shares(open_moves: Sequence[Sequence[object]], count: int) -> list[int]:
    """How many moves each cell gives: one after the other in turn, none more than it has."""
    shares = [0] * len(open_moves)
    while sum(shares) < count:
        hungry = [at for at, moves in enumerate(open_moves) if shares[at] < len(moves)]
        if not hungry:
            break
        for at in hungry[: count - sum(shares)]:
            shares[at] += 1
    return shares


@dataclass(frozen=True)
class _Author:
    """One conversation about one cell."""

    model: LanguageModel
    task: Task
    cell: Cell
    conversation: list[Message]
    recorder: Recorder
    seed: int

    def moves(self, open_moves: list[dict[str, Value]], wanted: int) -> list[Move]:
        legal = {_key(schedule): schedule for schedule in open_moves}
        found: dict[str, Move] = {}
        for round_ in range(ROUNDS):
            if 2 * len(found) < wanted:
                self._draw(legal, found, wanted, round_)
        if len(found) < wanted:
            self._rank([schedule for key, schedule in legal.items() if key not in found], found, wanted)
        return list(found.values())

    def _draw(self, legal: Mapping[str, dict[str, Value]], found: dict[str, Move], wanted: int, round_: int) -> None:
        drawn = draw_json(
            self.recorder, self.model, self.conversation, self.task.space.schema(*self.cell),
            count=wanted, temperature=TEMPERATURE, seed=(self.seed + round_) % 2**63,
        )  # fmt: skip
        for value in drawn.values:
            key = _key({name: value[name] for name in self.task.space.fields})
            if key in legal and key not in found and len(found) < wanted:
                found[key] = Move(*self.cell, legal[key], drawn.call_id, "drawn")

    def _rank(self, rest: list[dict[str, Value]], found: dict[str, Move], wanted: int) -> None:
        if len(rest) > MAX_RANKED:
            chosen = np.random.default_rng(self.seed).permutation(len(rest))[:MAX_RANKED]
            rest = [rest[at] for at in sorted(chosen.tolist())]
        target, size = self.cell
        values = [{"target": target, "size": size, **schedule} for schedule in rest]
        ranked = rank_json(self.recorder, self.model, self.conversation, values, seed=self.seed)
        order = sorted(range(len(rest)), key=lambda at: -ranked.scores[at])
        for at in order[: wanted - len(found)]:
            found[_key(rest[at])] = Move(target, size, rest[at], ranked.call_id, "ranked")


def _conversation(
    task: Task, cell: Cell, incumbent: Schedule | None, cost: Cost, failures: Sequence[str]
) -> list[Message]:
    """Equation, cell, incumbent with its predicted cost, the space, and what was refused before."""
    target, size = cell
    shapes = [list(shape) for shape, _source in task.bench_shapes.values() if task.size(shape) == size]
    lines = [
        f"Kernel {task.name}: {task.equation}",
        f"Target {target}, size {size}" + f", shape {shapes[0]}." * bool(shapes),
    ]
    if incumbent is not None:
        lines.append(f"Present schedule: {_spell(incumbent, task)}")
    if cost:
        terms = ", ".join(f"{name} {_figure(value)}" for name, value in cost.items())
        lines.append(f"Predicted cost of it: {terms}.")
    open_choices = task.space.choices(size)
    choices = "; ".join(f"{name}: {json.dumps(values)[1:-1]}" for name, values in open_choices.items())
    lines.append(f"Choices: {choices}.")
    lines += [f"Refused: {text[:MAX_FAILURE_CHARS]}" for text in failures]
    lines.append("Give a different schedule that runs faster.")
    return [Message("system", (Part("text", role_prompt(ROLE)),)), user("\n".join(lines))]


def _spell(schedule: Schedule, task: Task) -> str:
    return json.dumps({name: schedule[name] for name in task.space.fields if name in schedule})


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _key(schedule: Schedule) -> str:
    return json.dumps(dict(schedule), sort_keys=True)
