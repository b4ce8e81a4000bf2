"""What a kernel task is: an equation with an fp64 reference, shapes to judge on, and wrong answers to catch.

A task is one folder: ``task.py`` defines ``TASK = Task(...)`` and is read by people; ``kernel.py`` is the current best
and is written in the candidate language (``kernels/language.py``). Adding a task is adding a folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels.space import Space

Array = npt.NDArray[np.float64]
Shape = tuple[int, ...]
Values = dict[str, "Array | float | int"]


@dataclass(frozen=True)
class Argument:
    """One argument of the host function, in order."""

    name: str
    kind: Literal["tensor", "float", "int"]


@dataclass(frozen=True)
class WrongAnswer:
    """An answer that a judge must refuse: ``compute(values)`` gives the outputs a cheat would return."""

    name: str
    compute: Callable[[Values], tuple[Array, ...]]


@dataclass(frozen=True)
class Task:
    """A kernel task. Arrays are float64; ``dtype`` is a name of ``kernels.dtypes``; sizes are elements, floors bytes.

    ``inputs(shape, dtype, generator, scale)`` draws the arguments by name for one of ``scales``; the judge rounds
    tensors to the dtype before it hands them to reference and candidate. ``held_out(generator)`` draws shapes that no
    proposer sees. ``reduction_length`` enters the error budget. ``bytes_floor`` is what any right kernel must move.
    ``mutates`` names arguments that the host function may write; ``output_dtypes`` differs from the inputs' only if
    given.
    """

    name: str
    host: str
    title: str
    equation: str
    source: str
    arguments: tuple[Argument, ...]
    reference: Callable[..., tuple[Array, ...]]
    inputs: Callable[[Shape, str, np.random.Generator, str], Values]
    scales: tuple[str, ...]
    shapes: tuple[Shape, ...]
    held_out: Callable[[np.random.Generator], list[Shape]]
    bench_shapes: Mapping[str, tuple[Shape, str]]
    reduction_length: Callable[[Shape], int]
    bytes_floor: Callable[[Shape, int], int]
    flops: Callable[[Shape], int]
    space: Space
    wrong: tuple[WrongAnswer, ...]
    outputs: int = 1
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    layouts: tuple[str, ...] = ("contiguous", "offset")
    mutates: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = field(default=())

    def size(self, shape: Shape) -> int:
        """What a schedule depends on: the length of the last axis."""
        return shape[-1]

    def cell_shape(self, size: int, rows: int) -> Shape:
        """A shape of few rows that exercises the schedule of ``size``."""
        return (rows, size)

    def rows(self, shape: Shape) -> int:
        """Independent rows in a shape."""
        return math.prod(shape[:-1])

    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensor arguments, in order."""
        return tuple(argument.name for argument in self.arguments if argument.kind == "tensor")

    def output_dtype(self, index: int, dtype: str) -> str:
        """Dtype of output ``index`` when the inputs have ``dtype``."""
        return self.output_dtypes[index] if self.output_dtypes else dtype

    def expected(self, values: Values) -> tuple[Array, ...]:
        """The reference at these arguments."""
        return self.reference(*(values[argument.name] for argument in self.arguments))


def odd_shapes(
    generator: np.random.Generator, rows: tuple[int, int], columns: tuple[int, int], count: int
) -> list[Shape]:
    """Held-out shapes: one element, one column, a prime, one past and one short of a power of two, then random ones."""
    power = 2 ** int(generator.integers(5, 11))
    primes = [p for p in range(max(columns[0], 3), columns[1]) if all(p % d for d in range(2, math.isqrt(p) + 1))]

    def row() -> int:
        return int(generator.integers(rows[0], rows[1] + 1))

    fixed = [(1, 1), (row(), 1), (row(), int(generator.choice(primes))), (row(), power + 1), (row(), power - 1)]
    rest = [(row(), int(generator.integers(columns[0], columns[1] + 1))) for _ in range(count)]
    return [*fixed, *rest]
