"""Ahead-of-time compilation against an independent route: explicit signatures, and what ptxas itself reports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.compile import Compiler, bench_shape, table_cells, trusted_compiler
from kernels.library import STARTER_DIR, load_task
from kernels.space import Cell, Schedule, parse_schedules, render
from kernels.task import Task

SOURCE = (STARTER_DIR / "softmax" / "kernel.py").read_text()
BOTH: list[Cell] = [("sm_80", 2048), ("sm_90", 2048)]
WIDE: Schedule = {"loop": "single", "block": 2048, "rows": 1, "num_warps": 4, "num_stages": 1}
RAGGED: Schedule = {"loop": "single", "block": 131072, "rows": 1, "num_warps": 32, "num_stages": 1}
PIPELINED: Schedule = {"loop": "looped", "block": 1024, "rows": 1, "num_warps": 4, "num_stages": 3}

# The other route: the signature of the launch written out by hand, and ptxas run on the PTX with -v.
INDEPENDENT = """
import json, re, subprocess, sys, importlib.util, pathlib, tempfile
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
spec = importlib.util.spec_from_file_location("candidate", sys.argv[1])
module = importlib.util.module_from_spec(spec); sys.modules["candidate"] = module; spec.loader.exec_module(module)
arch, block, warps = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
signature = {"x_ptr": "*bf16", "y_ptr": "*bf16", "x_stride": "i32", "y_stride": "i32", "rows": "i32", "cols": "i32",
             "ROWS": "constexpr", "BLOCK": "constexpr"}
aligned = {(index,): [["tt.divisibility", 16]] for index in range(6)}
source = ASTSource(fn=module._single, signature=signature, constexprs={"ROWS": 1, "BLOCK": block}, attrs=aligned)
kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps, "num_stages": 1})
tools = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin"
with tempfile.TemporaryDirectory() as folder:
    ptx = pathlib.Path(folder, "k.ptx"); ptx.write_text(kernel.asm["ptx"])
    name = re.search(r"[.]target (sm_\\w+)", kernel.asm["ptx"]).group(1)
    tool = "ptxas" if arch == 80 else "ptxas-blackwell"
    command = [tools / tool, "-v", "--regAllocOptLevel=2", f"--gpu-name={name}", ptx, "-o", f"{folder}/k.cubin"]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
print(json.dumps({"registers": int(re.search(r"Used (\\d+) registers", log).group(1)),
                  "spill": sum(map(int, re.findall(r"(\\d+) bytes spill (?:stores|loads)", log))),
                  "shared": kernel.metadata.shared}))
"""


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with trusted_compiler() as compiler:
        yield compiler


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(STARTER_DIR / "softmax")


def independent(source: str, arch: int, block: int, warps: int, folder: Path) -> dict[str, int]:
    candidate = folder / "candidate.py"
    candidate.write_text(source)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder / "cache")
    done = subprocess.run(
        [sys.executable, "-c", INDEPENDENT, str(candidate), str(arch), str(block), str(warps)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    numbers: dict[str, int] = json.loads(done.stdout)
    return numbers


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("schedule", [WIDE, RAGGED], ids=["fits", "spills"])
def test_resources_agree_with_ptxas(
    compiler: Compiler, task: Task, tmp_path: Path, target: str, schedule: Schedule
) -> None:
    size = 2048 if schedule is WIDE else 128256
    source = render(SOURCE, target, size, schedule)
    result = compiler.compile(task, source, [(target, size)])
    assert result.reasons == []
    found = result.resources[target, size]
    truth = independent(source, int(target[3:]), int(schedule["block"]), int(schedule["num_warps"]), tmp_path)
    assert found.registers == truth["registers"]
    assert found.spill_bytes == truth["spill"]
    assert (found.spill_bytes > 0) is (schedule is RAGGED)
    assert found.shared_bytes == truth["shared"]
    assert found.launches[0].grid == (bench_shape(task, size)[0], 1, 1)
    assert found.launches[0].num_warps == schedule["num_warps"]
    assert 50 < found.instructions < 20_000


@pytest.mark.slow
def test_stages_reach_the_binary(compiler: Compiler, task: Task) -> None:
    """Three stages of a 1,024-element tile of 2 bytes keep at least one more tile in shared memory than none do."""
    cell = ("sm_90", 2048)
    staged, plain = (
        compiler.compile(task, render(SOURCE, *cell, {**PIPELINED, "num_stages": stages}), [cell]).resources[cell]
        for stages in (3, 1)
    )
    assert staged.shared_bytes >= plain.shared_bytes + 2048
    assert "LDGSTS" in staged.launches[0].sass.mix
    assert "LDGSTS" not in plain.launches[0].sass.mix
    assert len(staged.launches[0].sass.loops) == len(plain.launches[0].sass.loops) == 2


def edited(change: tuple[str, str]) -> str:
    assert change[0] in SOURCE
    return SOURCE.replace(*change)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "code", "detail"),
    [
        (("tl.max(x, axis=1)", "tl.maxx(x, axis=1)"), "compile-error", "maxx"),
        (("    y = torch.empty_like(x)\n", "    return torch.empty_like(x)\n"), "no-kernel-launched", ""),
        (("    y = torch.empty_like(x)\n", "    y = torch.empty_like(xx)\n"), "runtime-error", "xx"),
        (("import math\n", ""), "runtime-error", "import"),
        (("def softmax(x):", "def hardmax(x):"), "missing-host-function", "softmax"),
        (("    y = torch.empty_like(x)\n", "    import os; os.kill(os.getpid(), 9)\n"), "protocol-violation", ""),
        (("    y = torch.empty_like(x)\n", "    import socket; socket.socket()\n"), "sandbox-violation", ""),
        (
            ("    y = torch.empty_like(x)\n", "    import ctypes; ctypes.CDLL(None).ptrace(0)\n"),
            "process-violation",
            "",
        ),
    ],
    ids=["compiler", "nothing", "host", "import", "name", "killed", "socket", "ptrace"],
)
def test_what_does_not_compile_has_a_reason(
    compiler: Compiler, task: Task, change: tuple[str, str], code: str, detail: str
) -> None:
    source = "import nonsense_module\n" + SOURCE if code == "runtime-error" and detail == "import" else edited(change)
    result = compiler.compile(task, source, BOTH)
    assert result.resources == {}
    assert [reason.code for reason in result.reasons] == [code, code]
    assert all(detail in reason.detail for reason in result.reasons)
    assert compiler.compile(task, SOURCE, BOTH[:1]).reasons == []  # the next candidate finds everything as before


@pytest.mark.slow
def test_results_are_kept_by_content(task: Task) -> None:
    cache: dict[str, dict[str, Any]] = {}
    with trusted_compiler(cache) as compiler:
        first = compiler.compile(task, SOURCE, BOTH)
    assert len(cache) == 2
    unreachable = Compiler(None, cache, open_guest=lambda: pytest.fail("asked again"))
    again = unreachable.compile(task, SOURCE, BOTH)
    assert again == first
    with pytest.raises(pytest.fail.Exception):
        unreachable.compile(task, SOURCE + "\n", BOTH)


class Forger:
    """A guest that answers what it likes."""

    alive = True

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    def ask(self, request: bytes, timeout_s: float, max_bytes: int) -> bytes:
        return self.reply if isinstance(self.reply, bytes) else json.dumps(self.reply).encode()

    def close(self) -> None:
        pass


def forged(**changes: Any) -> dict[str, Any]:
    segment = {"instructions": 1, "pipes": {}, "load_bytes": 0, "store_bytes": 0, "cycles_dram": 1, "cycles_l2": 1}
    sass = {
        "instructions": 1,
        "mix": {},
        "spill_store_bytes": 0,
        "spill_load_bytes": 0,
        "straight": segment,
        "loops": [],
    }
    launch = {"kernel": "k", "grid": [1, 1, 1], "num_warps": 4, "registers": 32, "stack_bytes": 0, "shared_bytes": 0,
              "sass": sass}  # fmt: skip
    return {"cells": [{"target": "sm_90", "size": 2048, "launches": [launch | changes]}]}


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (b"not json", "protocol-violation"),
        ({"cells": []}, "protocol-violation"),
        ({"cells": [{"target": "sm_90", "size": 2048}]}, "protocol-violation"),
        ({"cells": [{"target": "sm_90", "size": 2048, "launches": []}]}, "protocol-violation"),
        (forged(registers=-1), "protocol-violation"),
        (forged(registers=True), "protocol-violation"),
        (forged(registers=1.5), "protocol-violation"),
        (forged(grid=[1, 1]), "protocol-violation"),
        (forged(shared_bytes=300 * 1024), "compile-error"),
        (forged(num_warps=64), "compile-error"),
        (forged(grid=[1, 70000, 1]), "compile-error"),
        (forged(grid=[0, 1, 1]), "compile-error"),
        ({"cells": [{"target": "sm_90", "size": 2048, "reason": {"code": "made-up", "detail": "", "where": ""}}]},
         "protocol-violation"),
    ],
)  # fmt: skip
def test_an_answer_is_checked_before_it_is_believed(task: Task, reply: Any, code: str) -> None:
    result = Compiler(None, open_guest=lambda: Forger(reply)).compile(task, SOURCE, [("sm_90", 2048)])
    assert result.resources == {}
    assert [reason.code for reason in result.reasons] == [code]


def test_the_default_cells_are_the_tables_at_bench_sizes(task: Task) -> None:
    cells = table_cells(task, render(SOURCE, "sm_90", 777, WIDE))
    assert cells == list(parse_schedules(SOURCE))
    with pytest.raises(ValueError, match="777"):
        bench_shape(task, 777)


def test_a_compiler_needs_somewhere_to_compile() -> None:
    with pytest.raises(ValueError, match="sandboxes"):
        Compiler(None)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_tuned_cell_is_the_optimum_of_its_whole_space(compiler: Compiler, target: str) -> None:
    """The smallest space among the tuned cells, compiled and predicted again from nothing."""
    from bench.exhaustive import search_cell

    swiglu = load_task(STARTER_DIR / "swiglu")
    source = (STARTER_DIR / "swiglu" / "kernel.py").read_text()
    cell = (target, 1536)
    present = parse_schedules(source)[cell]
    assert present.source == "exhaustive"
    rows, refused = search_cell(compiler, swiglu, source, cell)
    assert refused == []
    assert len(rows) == len(swiglu.space.moves(1536))
    assert rows[0].schedule == present.schedule


@pytest.mark.docker
@pytest.mark.slow
def test_the_same_numbers_come_out_of_the_sandbox(
    docker_engine: Any, compiler: Compiler, task: Task, tmp_path: Path
) -> None:
    from workspace.sandbox import Sandboxes
    from workspace.sandbox_settings import SandboxSettings

    sandboxes = Sandboxes(SandboxSettings(), owner="test-compile", scratch=tmp_path)
    with Compiler(sandboxes) as boxed:
        inside = boxed.compile(task, SOURCE, BOTH)
        assert inside.reasons == []
        assert inside.resources == compiler.compile(task, SOURCE, BOTH).resources
        broken = boxed.compile(task, edited(("tl.max(x, axis=1)", "tl.maxx(x, axis=1)")), BOTH)
        assert {reason.code for reason in broken.reasons} == {"compile-error"}


def test_ptxas_pattern_of_this_test() -> None:
    """The independent route reads both halves of ptxas's sentence about spills."""
    line = "    8 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads"
    assert sum(map(int, re.findall(r"(\d+) bytes spill (?:stores|loads)", line))) == 32
