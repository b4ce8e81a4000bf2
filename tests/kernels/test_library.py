"""Task registration: the shipped ones prove themselves, and those that cannot tell right from wrong are refused."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from kernels.library import STARTER_DIR, load_task, load_tasks, prove_task
from kernels.task import Task, WrongAnswer, odd_shapes
from workspace.errors import UserError


@pytest.fixture(scope="module")
def swiglu() -> Task:
    return load_task(STARTER_DIR / "swiglu")


def test_shipped_tasks_prove_themselves() -> None:
    assert list(load_tasks(STARTER_DIR)) == ["rmsnorm", "softmax", "swiglu"]


def test_a_constant_reference_is_refused(swiglu: Task) -> None:
    task = dataclasses.replace(swiglu, reference=lambda gate, up: (np.ones_like(gate),), wrong=())
    problems = prove_task(task)
    assert any("does not vary" in problem for problem in problems)
    assert any("same for every seed" in problem for problem in problems)


def test_a_task_whose_answer_is_its_input_is_refused(swiglu: Task) -> None:
    task = dataclasses.replace(swiglu, reference=lambda gate, up: (gate.copy(),), wrong=())
    assert "identity passes as an answer" in prove_task(task)


def test_a_task_that_zeros_pass_is_refused(swiglu: Task) -> None:
    task = dataclasses.replace(swiglu, reference=lambda gate, up: (gate * 0.0,), wrong=())
    assert "zeros passes as an answer" in prove_task(task)


def test_a_wrong_answer_that_is_right_is_refused(swiglu: Task) -> None:
    right = WrongAnswer("not-wrong", swiglu.expected)
    assert "wrong answer `not-wrong` passes" in prove_task(dataclasses.replace(swiglu, wrong=(right,)))


def test_a_reference_that_gives_nan_is_refused(swiglu: Task) -> None:
    task = dataclasses.replace(swiglu, reference=lambda gate, up: (gate * np.nan,), wrong=())
    assert any("NaN" in problem for problem in prove_task(task))


def test_a_reference_with_the_wrong_number_of_outputs_is_refused(swiglu: Task) -> None:
    assert any("outputs" in problem for problem in prove_task(dataclasses.replace(swiglu, outputs=2)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TASK = 3\n", "does not define"),
        ("import nothing_of_that_name\n", "cannot be loaded"),
        ("x = (\n", "cannot be loaded"),
    ],
)
def test_files_that_are_no_task(tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / "thing"
    folder.mkdir()
    (folder / "task.py").write_text(text)
    with pytest.raises(UserError, match=message):
        load_task(folder)


def test_a_folder_without_task_and_one_of_another_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no task\.py"):
        load_task(tmp_path)
    shutil.copytree(STARTER_DIR / "swiglu", tmp_path / "other")
    with pytest.raises(UserError, match="folder"):
        load_task(tmp_path / "other")


def test_held_out_shapes_are_odd_ones() -> None:
    shapes = odd_shapes(np.random.default_rng(3), (1, 7), (2, 3000), 2)
    assert (1, 1) in shapes
    assert any(columns & (columns - 1) for _, columns in shapes)
    assert shapes == odd_shapes(np.random.default_rng(3), (1, 7), (2, 3000), 2)
    assert shapes != odd_shapes(np.random.default_rng(4), (1, 7), (2, 3000), 2)


@pytest.mark.parametrize("name", ["rmsnorm", "softmax", "swiglu"])
def test_closed_forms(name: str) -> None:
    """Bytes: every input once, every output once (counted here from the drawn arrays)."""
    task = load_task(STARTER_DIR / name)
    values = task.inputs((5, 300), "float16", np.random.default_rng(0), task.scales[0])
    arrays = [np.asarray(values[tensor]) for tensor in task.tensor_names()] + list(task.expected(values))
    assert task.bytes_floor((5, 300), 2) == 2 * sum(array.size for array in arrays)
    assert task.flops((10, 300)) == 2 * task.flops((5, 300)) > 0
