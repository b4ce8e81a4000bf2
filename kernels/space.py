"""The typed space of schedules of a kernel task, and the table of schedules inside a candidate's source.

A *schedule* is one choice for every field (tile, warps, stages, loop form). A kernel's source holds one module-level
literal ``SCHEDULES = {(target, size): {field: value, ..., "source": label}, ...}``, one cell per line. A *move*
replaces one cell; ``render`` does that on the bytes of the source, so that the patch is one line and nothing else.

Not covered: whether a schedule is right or fast. The judge says the first, ``kernels.cost`` predicts the second.
"""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Value = int | str
Schedule = Mapping[str, Value]
Shape = tuple[int, ...]
Cell = tuple[str, int]

TABLE_NAME = "SCHEDULES"
SOURCE_FIELD = "source"
SOURCE_LABELS = ("exhaustive", "triton-tutorial", "liger", "proposal")

MIN_ELEMENTS_PER_THREAD = 4
"""In a loop's tile: below this a thread cannot issue one 8-byte access of 16-bit elements. A whole short row may have
one element a thread, which is what the usual heuristics choose."""
MAX_ELEMENTS_PER_THREAD = 128
"""A thread has 255 registers; a tile of more fp32 values than half of them leaves no room for addresses and results."""


class ScheduleTableError(ValueError):
    """A source has no usable SCHEDULES table; the message says what is wrong and on which line."""


@dataclass(frozen=True)
class Space:
    """All schedules of one task.

    ``fields`` maps each field to its values in order. ``legal(schedule, size)`` returns the name of the rule that a
    schedule breaks at a size, or None. ``issued(shape, itemsize, schedule)`` is the closed form of the bytes that the
    loop form loads and stores for a whole launch, re-reads and broadcast rows included.
    """

    fields: Mapping[str, tuple[Value, ...]]
    legal: Callable[[Schedule, int], str | None]
    issued: Callable[[Shape, int, Schedule], tuple[int, int]]
    _cache: dict[int, tuple[tuple[Value, ...], ...]] = field(default_factory=dict, compare=False, repr=False)

    def violation(self, schedule: Schedule, size: int) -> str | None:
        """The name of the first rule that ``schedule`` breaks at ``size``, or None when it is legal."""
        for name in self.fields:
            if name not in schedule:
                return f"missing-field:{name}"
        for name, value in schedule.items():
            if name not in self.fields:
                return f"unknown-field:{name}"
            # bool is an int and True == 1: compare the type too
            if not any(value == allowed and type(value) is type(allowed) for allowed in self.fields[name]):
                return f"value-not-in-space:{name}"
        return self.legal(schedule, size)

    def moves(self, size: int) -> list[dict[str, Value]]:
        """Every legal schedule at ``size``, in the order of the fields' values."""
        return [dict(zip(self.fields, values, strict=True)) for values in self._legal(size)]

    def _legal(self, size: int) -> tuple[tuple[Value, ...], ...]:
        """Values of the legal schedules, worked out once a size: searches ask for them at every step."""
        if size not in self._cache:
            self._cache[size] = tuple(
                tuple(schedule.values()) for schedule in self._all() if self.legal(schedule, size) is None
            )
        return self._cache[size]

    def _all(self) -> Iterator[dict[str, Value]]:
        for values in itertools.product(*self.fields.values()):
            yield dict(zip(self.fields, values, strict=True))

    def neighbours(self, schedule: Schedule, size: int) -> list[dict[str, Value]]:
        """Legal schedules that differ in one field, or in the loop form and whatever must change with it."""
        moves = self.moves(size)
        near = [move for move in moves if sum(move[name] != schedule[name] for name in self.fields) == 1]
        if "loop" in self.fields:
            near += [move for move in moves if move["loop"] != schedule["loop"] and move not in near]
        return near

    def choices(self, size: int) -> dict[str, list[Value]]:
        """Per field, the values that occur in some legal schedule at ``size``."""
        moves = self._legal(size)
        return {
            name: [value for value in values if any(move[place] == value for move in moves)]
            for place, (name, values) in enumerate(self.fields.items())
        }

    def schema(self, target: str, size: int) -> dict[str, Any]:
        """JSON schema of a move for one cell that exactly the legal schedules fulfil.

        A union of products: fields that depend on each other (a loop form and its tiles) are alternatives, so that a
        grammar made from it never yields a combination that breaks a rule.
        """
        names = list(self.fields)
        cell: dict[str, Any] = {"target": {"enum": [target]}, "size": {"enum": [size]}}
        return {
            "anyOf": [
                {
                    "type": "object",
                    "properties": cell | {name: {"enum": list(part)} for name, part in zip(names, parts, strict=True)},
                    "required": [*cell, *names],
                    "additionalProperties": False,
                }
                for parts in _products(list(self._legal(size)))
            ]
        }


def _products(moves: list[tuple[Value, ...]]) -> list[tuple[tuple[Value, ...], ...]]:
    """Disjoint products of sets of values, one set per place, whose union is ``moves``."""
    if moves and not moves[0]:
        return [()]
    rests: dict[Value, list[tuple[Value, ...]]] = {}
    for first, *rest in moves:
        rests.setdefault(first, []).append(tuple(rest))
    firsts: dict[tuple[tuple[Value, ...], ...], list[Value]] = {}
    for first, each in rests.items():
        firsts.setdefault(tuple(each), []).append(first)
    return [(tuple(group), *tail) for each, group in firsts.items() for tail in _products(list(each))]


@dataclass(frozen=True)
class TableCell:
    """One parsed cell: its schedule, where the schedule comes from, and its line (1-based)."""

    schedule: dict[str, Value]
    source: str
    line: int


def parse_schedules(source: str) -> dict[Cell, TableCell]:
    """The SCHEDULES table of a kernel's source, by (target, size). Raises ScheduleTableError."""
    cells: dict[Cell, TableCell] = {}
    for key_node, value_node in _cell_nodes(source):
        key, value = _literal(key_node), _literal(value_node)
        if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and type(key[1]) is int):
            raise ScheduleTableError(f"line {key_node.lineno}: a cell's key is (target, size), found {key!r}")
        if not isinstance(value, dict) or not all(isinstance(v, int | str) for v in value.values()):
            raise ScheduleTableError(f"line {key_node.lineno}: a cell is a dict of int and str, found {value!r}")
        if key in cells:
            raise ScheduleTableError(f"line {key_node.lineno}: cell {key!r} appears twice")
        schedule = dict(value)
        label = str(schedule.pop(SOURCE_FIELD, ""))
        cells[key] = TableCell(schedule=schedule, source=label, line=key_node.lineno)
    return cells


def render(source: str, target: str, size: int, schedule: Schedule, source_label: str = "proposal") -> str:
    """``source`` with the cell (target, size) set to ``schedule``: one line replaced or added, all other bytes kept.

    Raises ScheduleTableError when the source has no table, or when the cell does not sit on a line of its own.
    """
    if source_label not in SOURCE_LABELS:
        raise ValueError(f"source_label is one of {SOURCE_LABELS}, found {source_label!r}")
    nodes = _cell_nodes(source)
    lines = source.encode().splitlines(keepends=True)
    if len(lines) != len(source.encode().replace(b"\r\n", b"\n").rstrip(b"\n").split(b"\n")):
        raise ScheduleTableError("the source mixes line ends that Python and a diff count differently")
    key, text = (target, size), _cell_text(target, size, schedule, source_label)
    for key_node, value_node in nodes:
        if _literal(key_node) == key:
            _require_own_line(key_node, value_node, lines)
            index, line = key_node.lineno - 1, lines[key_node.lineno - 1]
            assert value_node.end_col_offset is not None
            lines[index] = line[: key_node.col_offset] + text + line[value_node.end_col_offset :]
            return b"".join(lines).decode()
    index, model_line = _place_for(key, nodes, lines)
    indent = model_line[: len(model_line) - len(model_line.lstrip())]
    ending = b"\r\n" if model_line.endswith(b"\r\n") else b"\n"
    lines.insert(index, indent + text + b"," + ending)
    return b"".join(lines).decode()


def _cell_text(target: str, size: int, schedule: Schedule, label: str) -> bytes:
    pairs = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in schedule.items() if name != SOURCE_FIELD]
    pairs.append(f'"{SOURCE_FIELD}": {json.dumps(label)}')
    return f"({json.dumps(target)}, {size}): {{{', '.join(pairs)}}}".encode()


def _place_for(key: Cell, nodes: list[tuple[ast.expr, ast.expr]], lines: list[bytes]) -> tuple[int, bytes]:
    """Where a missing cell goes (index into lines): before the first greater key, and a line to copy the indent of."""
    if not nodes:
        raise ScheduleTableError(f"{TABLE_NAME} is empty: it needs at least one cell to add another")
    for key_node, value_node in nodes:
        _require_own_line(key_node, value_node, lines)
        if _literal(key_node) > key:
            return key_node.lineno - 1, lines[key_node.lineno - 1]
    last_key, last_value = nodes[-1]
    line = lines[last_key.lineno - 1]
    assert last_value.end_col_offset is not None
    # without a comma after the last cell, adding behind it would change that line too
    has_comma = line[last_value.end_col_offset :].lstrip().startswith(b",")
    return (last_key.lineno if has_comma else last_key.lineno - 1), line


def _require_own_line(key_node: ast.expr, value_node: ast.expr, lines: list[bytes]) -> None:
    line = lines[key_node.lineno - 1]
    assert value_node.end_col_offset is not None
    rest = line[value_node.end_col_offset :].strip()
    alone = not line[: key_node.col_offset].strip() and (
        not rest or rest == b"," or rest.startswith((b",#", b"#")) or rest.lstrip(b", ").startswith(b"#")
    )
    if key_node.lineno != value_node.end_lineno or not alone:
        raise ScheduleTableError(f"line {key_node.lineno}: a cell of {TABLE_NAME} has one line of its own")


def _cell_nodes(source: str) -> list[tuple[ast.expr, ast.expr]]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise ScheduleTableError(f"the source does not parse: {error}") from error
    tables = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            names, value = [node.target], node.value
        else:
            continue
        if any(isinstance(name, ast.Name) and name.id == TABLE_NAME for name in names):
            tables.append(value)
    if len(tables) != 1 or not isinstance(tables[0], ast.Dict):
        raise ScheduleTableError(f"the source needs exactly one module-level `{TABLE_NAME} = {{...}}` literal")
    table = tables[0]
    if any(key is None for key in table.keys):
        raise ScheduleTableError(f"{TABLE_NAME} is a plain literal, without **")
    return [(key, value) for key, value in zip(table.keys, table.values, strict=True) if key is not None]


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ScheduleTableError(f"line {node.lineno}: {TABLE_NAME} holds plain literals only") from error


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is at least ``value`` (which is positive)."""
    return 1 << (value - 1).bit_length()


# --- the spaces of the tasks that ship -------------------------------------------------------------------------------

BLOCKS = tuple(1 << power for power in range(7, 18))
WARPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 3)
ROWS = (1, 2, 4, 8, 16)
MIN_LOOP_BLOCK = 512
MAX_LOOP_BLOCK = 16384


def _form_rule(schedule: Schedule, size: int) -> str | None:
    """Rules that every row-wise loop form shares: tile against row, stages, elements per thread."""
    block, loop, full = int(schedule["block"]), schedule["loop"], next_power_of_2(size)
    if loop == "single" and block != full:
        return "single-needs-the-whole-row-in-one-tile"
    if loop != "single" and block >= full:
        return "tile-covers-the-row-use-single"
    if loop != "single" and not MIN_LOOP_BLOCK <= block <= MAX_LOOP_BLOCK:
        return "tile-outside-512-to-16384"
    if loop != "looped" and schedule["num_stages"] != 1:
        return "stages-need-a-loop"
    per_thread = block * int(schedule.get("rows", 1)) // (32 * int(schedule["num_warps"]))
    if per_thread < 1:
        return "fewer-than-1-element-per-thread"
    if loop != "single" and per_thread < MIN_ELEMENTS_PER_THREAD:
        return "fewer-than-4-elements-per-thread"
    if per_thread > MAX_ELEMENTS_PER_THREAD:
        return "more-than-128-elements-per-thread"
    return None


def _row_rule(schedule: Schedule, size: int) -> str | None:
    if schedule["loop"] != "single" and schedule["rows"] != 1:
        return "rows-need-single"
    return _form_rule(schedule, size)


def row_reduction_space(shared_row_bytes_per_col: int = 0) -> Space:
    """Space of a row-wise reduction over [rows, cols] that writes a result of the same shape (RMSNorm, softmax).

    ``single``: a program holds ``rows`` whole rows in one tile. ``looped``: a program takes one row in tiles of
    ``block`` and reads it twice (reduce, then write). ``shared_row_bytes_per_col`` is the number of vectors of length
    cols that every program loads once (RMSNorm's weight: 1).
    """

    def issued(shape: Shape, itemsize: int, schedule: Schedule) -> tuple[int, int]:
        cols = shape[-1]
        rows = _product(shape[:-1])
        programs = -(-rows // int(schedule["rows"])) if schedule["loop"] == "single" else rows
        reads = 1 if schedule["loop"] == "single" else 2
        load = reads * rows * cols + shared_row_bytes_per_col * programs * cols
        return load * itemsize, rows * cols * itemsize

    fields: dict[str, tuple[Value, ...]] = {
        "loop": ("single", "looped"),
        "block": BLOCKS,
        "rows": ROWS,
        "num_warps": WARPS,
        "num_stages": STAGES,
    }
    return Space(fields=fields, legal=_row_rule, issued=issued)


def elementwise_space(inputs: int = 1) -> Space:
    """Space of an element-wise operation over [rows, cols] with ``inputs`` tensors of that shape and one result.

    ``single``: a program takes a whole row in one tile (Liger-Kernel's SwiGLU). ``looped``: a program loops over its
    row. ``tiled``: a grid of (rows, tiles), one tile a program.
    """

    def issued(shape: Shape, itemsize: int, schedule: Schedule) -> tuple[int, int]:  # noqa: ARG001 - all forms alike
        elements = _product(shape)
        return inputs * elements * itemsize, elements * itemsize

    fields: dict[str, tuple[Value, ...]] = {
        "loop": ("single", "looped", "tiled"),
        "block": BLOCKS,
        "num_warps": WARPS,
        "num_stages": STAGES,
    }
    return Space(fields=fields, legal=_form_rule, issued=issued)


def _product(shape: Shape) -> int:
    product = 1
    for length in shape:
        product *= length
    return product
