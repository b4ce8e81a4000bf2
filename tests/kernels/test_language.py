"""The language gate: real Triton code passes, and everything that is not in the language is refused by name."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kernels.language import check_source, describe
from kernels.library import STARTER_DIR, load_task
from kernels.reasons import CODES
from kernels.self_test import read_cheats, starter_tasks
from kernels.task import Argument, Task

HERE = Path(__file__).parent
REAL = sorted((HERE / "real_world").glob("*.py"))
HONEST = sorted((HERE / "honest").glob("*.py"))
SWIGLU = load_task(STARTER_DIR / "swiglu")

KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def _kernel(gate_ptr, up_ptr, y_ptr, n, BLOCK: tl.constexpr):
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + column, mask=column < n)
    KERNEL_LINE
    tl.store(y_ptr + column, gate, mask=column < n)

def swiglu(gate, up):
    y = torch.empty_like(gate)
    HOST_LINE
    _kernel[(triton.cdiv(gate.numel(), 128),)](gate, up, y, gate.numel(), BLOCK=128)
    return y
"""


def _task(host: str, arguments: list[str]) -> Task:
    kinds = [Argument(name, "float" if name == "eps" else "tensor") for name in arguments]
    return dataclasses.replace(SWIGLU, host=host, arguments=tuple(kinds))


def _source(host: str = "pass", kernel: str = "pass", top: str = "") -> str:
    return top + KERNEL.replace("HOST_LINE", host).replace("KERNEL_LINE", kernel)


def _codes(source: str, task: Task = SWIGLU) -> list[str]:
    return [reason.code for reason in check_source(source, task)]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_kernels_are_in_the_language(path: Path) -> None:
    source = path.read_text()
    marked = re.search(r"^# host: (.*)$", source, re.MULTILINE)
    assert marked is not None
    host, *arguments = marked[1].split()
    assert check_source(source, _task(host, arguments)) == []


@pytest.mark.parametrize("path", HONEST, ids=lambda path: path.stem)
def test_honest_candidates_are_in_the_language(path: Path) -> None:
    source = path.read_text()
    marked = re.search(r"^# task: (.*)$", source, re.MULTILINE)
    assert marked is not None
    assert check_source(source, starter_tasks()[marked[1]]) == []


@pytest.mark.parametrize("name", ["rmsnorm", "softmax", "swiglu"])
def test_shipped_kernels_are_in_the_language(name: str) -> None:
    assert check_source((STARTER_DIR / name / "kernel.py").read_text(), starter_tasks()[name]) == []


def test_the_template_of_this_file_is_in_the_language() -> None:
    assert _codes(_source()) == []


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("import os", "forbidden-import"),
        ("open('x')", "forbidden-call"),
        ("print(1)", "forbidden-call"),
        ("getattr(gate, 'shape')", "forbidden-call"),
        ("eval('1')", "forbidden-call"),
        ("z = somebody", "forbidden-name"),
        ("z = gate.__class__", "forbidden-name"),
        ("z = gate._base", "forbidden-name"),
        ("z = gate.data_ptr()", "host-compute"),
        ("z = gate + up", "host-compute"),
        ("z = -gate", "host-compute"),
        ("gate += up", "host-compute"),
        ("z = gate.sum()", "host-compute"),
        ("z = gate.to(torch.float32)", "host-compute"),
        ("gate.zero_()", "host-compute"),
        ("gate[0] = 1", "host-compute"),
        ("z = torch.softmax(gate, -1)", "host-compute"),
        ("z = torch.nn.functional.silu(gate)", "host-compute"),
        ("z = torch.ops.aten.silu(gate)", "host-compute"),
        ("z = torch.tensor([1.0])", "forbidden-call"),
        ("z = float(gate)", "host-compute"),
        ("if gate:\n        pass", "host-compute"),
        ("z = 1 if gate.device == up.device else 2", "forbidden-construct"),
        ("z = f'{gate.device}'", "forbidden-construct"),
        ("z = torch.empty(3, device='cuda')", "forbidden-call"),
        ("z = torch.empty(3, out=gate)", "forbidden-call"),
        ("try:\n        pass\n    except Exception:\n        pass", "forbidden-construct"),
        ("while True:\n        pass", "forbidden-construct"),
        ("with torch.no_grad():\n        pass", "forbidden-construct"),
        ("global y", "module-state"),
        ("swiglu.kept = y", "module-state"),
        ("torch.empty = y", "module-state"),
        ("z = [w := 3]", "module-state"),
        ("z = lambda kept=[]: 1", "module-state"),
        ("z = {}.setdefault(1, 2)", "module-state"),
        ("z = {1, 2}", "forbidden-construct"),
        ("z = _kernel", "forbidden-name"),
        ("_kernel(gate, up, y, 1, 2)", "forbidden-call"),
        ("z = _kernel[(1,)](gate, up, y, 1, BLOCK=2)", "forbidden-construct"),
        ("swiglu(gate, up)", "forbidden-construct"),
        ("torch = 3", "forbidden-name"),
        ("class Thing:\n        pass", "forbidden-construct"),
        ("def inner():\n        pass", "forbidden-construct"),
        ("yield 1", "forbidden-construct"),
        ("z = gate.grad", "forbidden-name"),
        ("z = '{0.__class__}'.format(gate)", "forbidden-call"),
        ("z = torch.cuda.Stream()", "forbidden-call"),
        ("z = gate.untyped_storage()", "host-compute"),
    ],
)
def test_host_code_that_is_refused(line: str, code: str) -> None:
    assert code in _codes(_source(host=line))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("z = tl.inline_asm_elementwise('trap;', '=r,r', [column], tl.int32, True, 1)", "forbidden-call"),
        ("z = column.to(tl.pointer_type(tl.float32))", "forbidden-call"),
        ("z = column.to(gate_ptr.dtype)", "forbidden-call"),
        ("z = tl.cast(column, gate_ptr.dtype)", "forbidden-call"),
        ("tl.device_print('x', column)", "forbidden-call"),
        ("print(column)", "forbidden-call"),
        ("z = tl.rand(1, column)", "forbidden-call"),
        ("z = torch.sum(gate)", "host-compute"),
        ("z = somebody", "forbidden-name"),
        ("z = gate.handle", "forbidden-name"),
        ("z = gate.__class__", "forbidden-name"),
        ("z = tl.core.tensor", "forbidden-name"),
        ("gate[0] = 1", "forbidden-construct"),
        ("for z in (1, 2):\n        pass", "forbidden-construct"),
        ("try:\n        pass\n    except Exception:\n        pass", "forbidden-construct"),
        ("import os", "forbidden-import"),
        ("z = [i for i in range(3)]", "forbidden-construct"),
        ("z = (lambda: 1)()", "forbidden-call"),
        ("tl = 3", "forbidden-name"),
        ("z = swiglu(gate, gate)", "forbidden-call"),
        ("z = tl.load(gate_ptr, _semantic=1)", "forbidden-name"),
    ],
)  # fmt: skip
def test_kernel_code_that_is_refused(line: str, code: str) -> None:
    assert code in _codes(_source(kernel=line))


@pytest.mark.parametrize(
    ("top", "code"),
    [
        ("from os import path\n", "forbidden-import"),
        ("from . import thing\n", "forbidden-import"),
        ("import torch.nn.functional as F\n", "forbidden-import"),
        ("from torch import *\n", "forbidden-import"),
        ("CACHE = {}\n", "module-state"),
        ("CACHE = []\n", "module-state"),
        ("CACHE = dict()\n", "module-state"),
        ("CACHE = [x for x in range(3)]\n", "module-state"),
        ("SIZE = somebody\n", "forbidden-name"),
        ("class Thing:\n    pass\n", "forbidden-construct"),
        ("if True:\n    pass\n", "forbidden-construct"),
        ("len = 3\n", "module-state"),
        ("def helper(x, kept={}):\n    return x\n", "module-state"),
        ("def helper(*x):\n    return x\n", "forbidden-construct"),
        ("def helper(x: open('y')):\n    return x\n", "forbidden-construct"),
        ("@staticmethod\ndef helper(x):\n    return x\n", "forbidden-construct"),
        ("1 + 1\n", "forbidden-construct"),
    ],
)
def test_module_level_code_that_is_refused(top: str, code: str) -> None:
    assert code in _codes(_source(top=top))


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("def swiglu(gate, up:\n", "syntax"),
        ("\0", "syntax"),
        ("x = " + "(" * 500 + ")" * 500, "syntax"),
        ("", "missing-host-function"),
        ("import triton\n\n@triton.jit\ndef swiglu(a, b):\n    pass\n", "missing-host-function"),
        (_source().replace("def swiglu(gate, up)", "def swiglu(gate)").replace("up, y", "gate, y"), "signature"),
        (_source().replace("def swiglu(gate, up)", "def swiglu(gate, up, *, scale)"), "signature"),
        ("def swiglu(gate, up):\n    return gate\n", "no-kernel-launched"),
    ],
)
def test_files_that_are_no_candidate(source: str, code: str) -> None:
    assert code in _codes(source)


def test_a_tensor_is_known_as_one_through_helpers() -> None:
    top = "def helper(value, factor):\n    return value * factor\n"
    assert "host-compute" in _codes(_source(top=top, host="z = helper(gate, 2)"))
    assert _codes(_source(top=top, host="z = helper(gate.shape[0], 2)")) == []


def test_reasons_name_line_rule_and_hint() -> None:
    (reason,) = check_source(_source(host="z = gate.to(torch.float32)"), SWIGLU)
    line = _source(host="z = gate.to(torch.float32)").split("\n").index("    z = gate.to(torch.float32)") + 1
    assert reason.where == f"candidate.py:{line}"
    assert "hint" in reason.detail


def test_cheats_that_the_gate_can_see_are_refused_by_it() -> None:
    tasks = starter_tasks()
    for cheat in read_cheats():
        codes = _codes(cheat.source, tasks[cheat.task])
        if codes:
            assert set(codes) & set(cheat.expect), cheat.name


def test_the_description_has_every_reason_code() -> None:
    text = describe()
    assert all(f"`{code}`" in text for code in CODES)
