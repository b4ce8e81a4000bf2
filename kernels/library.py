"""Kernel tasks on disk: loading them, and the proof that a task can tell right from wrong before it may judge anyone.

A task is registered only if its reference is finite where it should be, varies along every axis and across seeds, and
refuses zeros, the mean, its own inputs, a neighbour's result, and every wrong answer that the task itself declares.
The shipped kernel is checked by the judge in the sandbox (``nightshift kernel check``), not here.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
from pathlib import Path

import numpy as np

from kernels.dtypes import DTYPES, rounded
from kernels.oracle import compare
from kernels.space import ScheduleTableError, parse_schedules
from kernels.task import Array, Shape, Task, Values
from workspace.errors import UserError

PROOF_SEED = 20250
STARTER_DIR = Path(__file__).parent / "starter"


def load_task(directory: Path) -> Task:
    """The proven task of a folder; UserError when ``task.py`` is missing, wrong, or cannot tell right from wrong."""
    path = directory / "task.py"
    if not path.is_file():
        raise UserError("there is no task.py", field=str(directory), allowed="a folder with task.py and kernel.py")
    name = f"nightshift_task_{directory.name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"cannot be loaded: {type(error).__name__}: {error}", field=str(path)) from error
    finally:
        sys.modules.pop(name, None)
    task = getattr(module, "TASK", None)
    if not isinstance(task, Task):
        raise UserError("does not define TASK = Task(...)", field=str(path))
    if task.name != directory.name:
        raise UserError("the task's name is not its folder's", field=str(path), value=task.name, allowed=directory.name)
    problems = prove_task(task)
    if problems:
        raise UserError(f"the task cannot judge: {'; '.join(problems)}", field=str(path))
    return task


def load_tasks(kernels_dir: Path) -> dict[str, Task]:
    """All tasks of a lab, by name; folders without a task.py are passed over."""
    folders = (
        sorted(path for path in kernels_dir.iterdir() if (path / "task.py").is_file()) if kernels_dir.is_dir() else []
    )
    return {folder.name: load_task(folder) for folder in folders}


def incumbent(kernels_dir: Path, name: str) -> str:
    """Source of the current best kernel of a task."""
    path = kernels_dir / name / "kernel.py"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", field=str(path)) from error


def table_problem(source: str) -> str:
    """What is wrong with a kernel's SCHEDULES table, or an empty string."""
    try:
        parse_schedules(source)
    except ScheduleTableError as error:
        return str(error)
    return ""


def prove_task(task: Task) -> list[str]:
    """Why this task may not judge; empty when it may."""
    problems = [f"unknown dtype {dtype}" for dtype in task.dtypes if dtype not in DTYPES]
    if problems:
        return problems
    for dtype, shape, scale in itertools.product(task.dtypes, task.shapes, task.scales):
        problem = _bad_reference(task, dtype, shape, scale)
        if problem:
            return [problem]
    problems += _constant(task)
    for name in ("zeros", "mean", "identity", "neighbour", "other seed"):
        if not _refused(task, name, task.dtypes):
            problems.append(f"{name} passes as an answer")
    for wrong in task.wrong:
        if not _refused(task, wrong.name, task.dtypes[:1]):
            problems.append(f"wrong answer `{wrong.name}` passes")
    rng = np.random.default_rng(PROOF_SEED)
    if not task.held_out(rng):
        problems.append("no held-out shapes")
    return problems


def _bad_reference(task: Task, dtype: str, shape: Shape, scale: str) -> str:
    values, expected = _drawn(task, shape, dtype, scale, PROOF_SEED)
    if len(expected) != task.outputs:
        return f"the reference gives {len(expected)} outputs, the task declares {task.outputs}"
    if any(np.isnan(array).any() for array in expected):
        return f"the reference is NaN at {shape}, inputs `{scale}`"
    if any((a != b).any() for a, b in zip(expected, task.expected(values), strict=True)):
        return "the reference is not deterministic, or changes its inputs"
    return ""


def _drawn(task: Task, shape: Shape, dtype: str, scale: str, seed: int) -> tuple[Values, tuple[Array, ...]]:
    drawn = task.inputs(shape, dtype, np.random.default_rng(seed), scale)
    values: Values = {
        name: rounded(np.asarray(value, dtype=np.float64), dtype) if name in task.tensor_names() else value
        for name, value in drawn.items()
    }
    return values, task.expected(values)


def _constant(task: Task) -> list[str]:
    """A reference without variance along an axis, or across seeds, could be answered by heart."""
    shape = max(task.shapes, key=math.prod)
    _, first = _drawn(task, shape, task.dtypes[0], task.scales[0], PROOF_SEED)
    _, second = _drawn(task, shape, task.dtypes[0], task.scales[0], PROOF_SEED + 1)
    problems = []
    for place, (array, other) in enumerate(zip(first, second, strict=True)):
        for axis, length in enumerate(array.shape):
            if length > 1 and float(np.ptp(array, axis=axis).max()) == 0.0:
                problems.append(f"output {place} does not vary along axis {axis}")
        if array.shape == other.shape and (array == other).all():
            problems.append(f"output {place} is the same for every seed")
    return problems


def _refused(task: Task, name: str, dtypes: tuple[str, ...]) -> bool:
    """Whether an answer fails at least once for every dtype over the shown shapes and scales."""
    return all(
        any(
            _fails(task, name, dtype, shape, scale)
            for shape in task.shapes
            for scale in task.scales
        )
        for dtype in dtypes
    )  # fmt: skip


def _fails(task: Task, name: str, dtype: str, shape: Shape, scale: str) -> bool:
    values, expected = _drawn(task, shape, dtype, scale, PROOF_SEED)
    answer = _answer(task, name, values, dtype, expected, shape, scale)
    for output, reference in zip(answer, expected, strict=True):
        if output.shape != reference.shape:
            return True
        if compare(rounded(output, dtype), reference, dtype, task.reduction_length(shape)).code is not None:
            return True
    return False


def _answer(
    task: Task, name: str, values: Values, dtype: str, expected: tuple[Array, ...], shape: Shape, scale: str
) -> tuple[Array, ...]:
    if name == "zeros":
        return tuple(np.zeros_like(array) for array in expected)
    if name == "mean":
        return tuple(np.full_like(array, array.mean()) for array in expected)
    if name == "identity":
        first = np.asarray(values[task.tensor_names()[0]], dtype=np.float64)
        return tuple(first.copy() for _ in expected)
    if name == "neighbour":
        return tuple(np.roll(array, 1, axis=-1) for array in expected)
    if name == "other seed":
        return _drawn(task, shape, dtype, scale, PROOF_SEED + 1)[1]
    wrong = next(item for item in task.wrong if item.name == name)
    return wrong.compute(values)
