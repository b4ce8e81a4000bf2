"""Which calls a candidate is judged on, and their secret inputs.

Everything is drawn from the lab's secret by HMAC-SHA256: held-out shapes per task, values per candidate and case,
orders of programs per case. A proposer sees neither the secret nor a held-out shape; the same candidate in the same lab
meets the same calls.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.dtypes import DTYPES, encode, rounded
from kernels.task import Array, Shape, Task, Values
from kernels.wire import Blobs

CELL_DTYPE = "float32"
CELL_ROWS = 2
MAX_CELL_ROWS = 17


@dataclass
class Case:
    """One call: ``values`` are what the candidate holds (rounded to the dtype, in float64); ``orders`` one per run."""

    number: int
    target: str
    shape: Shape
    dtype: str
    scale: str
    layout: str
    held_out: bool
    values: Values
    expected: tuple[Array, ...]
    orders: list[int | None]
    cell: tuple[str, int] | None = None

    def header(self, task: Task, blobs: Blobs) -> dict[str, Any]:
        """The case as the sandbox gets it."""
        arguments: list[dict[str, Any]] = []
        for argument in task.arguments:
            value = self.values[argument.name]
            if argument.kind != "tensor":
                arguments.append({"kind": argument.kind, "name": argument.name, "value": value})
                continue
            array = np.asarray(value, dtype=np.float64)
            arguments.append(
                {
                    "kind": "tensor",
                    "name": argument.name,
                    "shape": list(array.shape),
                    "stride": _strides(array.shape, self.layout),
                    "offset": 1 if self.layout == "offset" else 0,
                    "dtype": self.dtype,
                    "mutable": argument.name in task.mutates,
                    **blobs.add(encode(array, self.dtype)),
                }
            )
        return {"id": self.number, "target": self.target, "arguments": arguments, "orders": self.orders}


def _strides(shape: Shape, layout: str) -> list[int]:
    """Row-major strides in elements; ``strided`` leaves a gap of three elements behind each row."""
    strides, step = [], 1
    for place, length in enumerate(reversed(shape)):
        strides.append(step)
        step *= length + (3 if layout == "strided" and place == 0 and len(shape) > 1 else 0)
    return strides[::-1]


@dataclass
class Draw:
    """The source of everything secret about one candidate of one task."""

    secret: bytes
    task: Task
    candidate: str
    cases: list[Case] = field(default_factory=list)

    def seed(self, *labels: object) -> int:
        """64 bits from the secret and the labels."""
        text = "/".join(str(label) for label in labels)
        return int.from_bytes(hmac.new(self.secret, text.encode(), hashlib.sha256).digest()[:8], "big")

    def held_out_shapes(self) -> list[Shape]:
        """This lab's held-out shapes of the task."""
        return self.task.held_out(np.random.default_rng(self.seed("held-out", self.task.name)))

    def add(
        self, shape: Shape, dtype: str, scale: str, *, target: str, layout: str = "contiguous", held_out: bool = False,
        repeats: int = 2, cell: tuple[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Draw one case; ``repeats`` 1: natural order; 2: and a shuffled one; 3: and the natural one again."""
        number = len(self.cases)
        seed = self.seed("values", self.task.name, self.candidate, number)
        drawn = self.task.inputs(shape, dtype, np.random.default_rng(seed), scale)
        values: Values = {}
        for argument in self.task.arguments:
            value = drawn[argument.name]
            if argument.kind == "tensor":
                value = rounded(np.asarray(value, dtype=np.float64), dtype)
            values[argument.name] = value
        order = self.seed("order", self.task.name, self.candidate, number) % 2**32
        orders: list[int | None] = [None, order, None]
        with np.errstate(over="ignore", under="ignore"):
            expected = self.task.expected(values)
        self.cases.append(
            Case(
                number, target, shape, dtype, scale, layout, held_out, values, expected, orders[:repeats], cell
            )
        )  # fmt: skip


def draw_cases(
    secret: bytes, task: Task, candidate: str, targets: Iterable[str], cells: list[tuple[str, int]],
    rows_of: dict[tuple[str, int], int], profile: str,
) -> list[Case]:  # fmt: skip
    """All cases of a check.

    ``full``: every dtype at every scale over the shown shapes, targets and layouts in turn; one shape twice with new
    values at the same addresses; every held-out shape; every cell. ``smoke``: two scales in the first dtype, one call
    in each other, two held-out shapes, every cell.
    """
    draw = Draw(secret, task, candidate)
    targets = list(targets)
    smoke = profile == "smoke"
    dtypes = task.dtypes[:1] if smoke else task.dtypes
    turn = 0
    for dtype in dtypes:
        for scale in task.scales[:2] if smoke else task.scales:
            layout = task.layouts[turn // 2 % len(task.layouts)]
            shape = task.shapes[turn % len(task.shapes)]
            draw.add(
                shape,
                dtype,
                scale,
                target=targets[turn % len(targets)],
                layout=layout,
                repeats=3 if turn == 0 else 2 if dtype == dtypes[0] else 1,
            )
            turn += 1
    for dtype in task.dtypes[1:] if smoke else ():
        draw.add(task.shapes[0], dtype, task.scales[0], target=targets[0], repeats=1)
    for scale in task.scales[:2]:
        draw.add(task.shapes[0], task.dtypes[0], scale, target=targets[0], repeats=1)
    held_out = draw.held_out_shapes()
    for place, shape in enumerate(held_out[2:4] if smoke else held_out):
        dtype = dtypes[place % len(dtypes)]
        scale = task.scales[place % len(task.scales)]
        draw.add(shape, dtype, scale, target=targets[place % len(targets)], held_out=True, repeats=1 + place % 2)
    for cell in cells:
        rows = min(max(CELL_ROWS, rows_of.get(cell, 1) + 1), MAX_CELL_ROWS)
        draw.add(task.cell_shape(cell[1], rows), CELL_DTYPE, task.scales[0], target=cell[0], repeats=1, cell=cell)
    return draw.cases


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return DTYPES[dtype].itemsize
