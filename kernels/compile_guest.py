"""Runs inside the sandbox: compiles candidates ahead of time and reads what the compiler made of them.

    python -m kernels.compile_guest [SOCKET]

The process imports torch and triton once, compiles a small kernel per target so that everything is loaded, and then
forks one child per request. The child imports the candidate (which is running it), calls its host function on tensors
without data (device "meta") at the real shape, and lets Triton's own launcher do the specialisation and compilation: a
stub driver says which GPU is there, and every launch is turned into a warm-up. No kernel is ever run.

Whatever comes back is a claim of a process that ran foreign code: it may refuse a candidate and rank it, never accept
it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from kernels.confine import EXIT_SANDBOX, hide_from_others, restrict
from kernels.sass import summarise
from workspace.sandbox_guest import CHANNEL, leave_channel, serve

MOST_REPLY_BYTES = 4 << 20
MOST_MEMORY_BYTES = 4 << 30
MOST_FILE_BYTES = 64 << 20
MOST_DETAIL_CHARS = 2000
MOST_LAUNCHES = 64
CANDIDATE_FILE = "candidate.py"
TOOL_TIMEOUT_S = 120

_WARM_UP = """
import torch, triton, triton.language as tl
@triton.jit
def _kernel(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(x_ptr + i, (x - tl.sum(x, axis=0)).to(x_ptr.dtype.element_ty), mask=i < n)
def host(x):
    # what allocates on "meta" imports more of torch at its first call
    for y in (torch.empty_like(x), torch.zeros_like(x), x.new_empty((2, 2)), x.reshape(2, -1).contiguous()):
        y.stride(0), y.is_contiguous(), y.view(-1)
    torch.empty((2,), dtype=x.dtype, device=x.device), torch.zeros((2,), dtype=x.dtype, device=x.device)
    _kernel[(1,)](x, x.shape[0], BLOCK=256)
    return x
"""


class HostFailed(Exception):
    """The host function or the compiler raised; carries the reason code, a detail and the line."""

    def __init__(self, code: str, detail: str, where: str = "") -> None:
        super().__init__(detail)
        self.code, self.detail, self.where = code, detail[:MOST_DETAIL_CHARS], where


class StubDriver:
    """Says to Triton that ``target``'s GPU is present. It can compile for it and nothing else."""

    def __init__(self, arch: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.arch, self.target = arch, GPUTarget("cuda", arch, 32)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return self.arch  # Triton keeps its compiled kernels per device: one shelf per target

    def get_current_stream(self, device: int | None = None) -> int:  # noqa: ARG002 - Triton passes it
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("meta")


def compile_cells(request: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Answer one request: ``{"source", "host", "cells": [{"target", "size", "arch", "arguments", latencies…}]}``."""
    try:
        module = _import_candidate(request["source"], scratch)
        host = getattr(module, request["host"], None)
        if not callable(host):
            raise HostFailed("missing-host-function", f"{request['host']} is not defined")
    except HostFailed as error:
        return {"cells": [_failure(cell, error) for cell in request["cells"]]}
    replies = []
    for cell in request["cells"]:
        try:
            launches = [_describe(kernel, grid, cell, scratch) for kernel, grid in _capture(host, cell)]
            replies.append({"target": cell["target"], "size": cell["size"], "launches": launches})
        except HostFailed as error:
            replies.append(_failure(cell, error))
    return {"cells": replies}


def _failure(cell: dict[str, Any], error: HostFailed) -> dict[str, Any]:
    reason = {"code": error.code, "detail": error.detail, "where": error.where}
    return {"target": cell["target"], "size": cell["size"], "reason": reason}


def _import_candidate(source: str, scratch: Path) -> ModuleType:
    path = scratch / CANDIDATE_FILE  # a real file: Triton reads the source of its functions from it
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise HostFailed("runtime-error", f"import: {type(error).__name__}: {error}", _where(error)) from error
    return module


def _capture(host: Callable[..., Any], cell: dict[str, Any]) -> list[tuple[Any, tuple[int, ...]]]:
    """Every launch of one call of the host function: the compiled kernel and its grid."""
    import torch
    from triton.compiler.errors import TritonError
    from triton.runtime import driver, jit

    launches: list[tuple[Any, tuple[int, ...]]] = []
    original_run, original_capability = jit.JITFunction.run, torch.cuda.get_device_capability

    def warm_up(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:  # noqa: ARG001
        if len(launches) >= MOST_LAUNCHES:
            raise HostFailed("runtime-error", f"more than {MOST_LAUNCHES} launches in one call")
        try:
            kernel = original_run(self, *args, grid=grid, warmup=True, **options)
        except TritonError as error:
            raise HostFailed("compile-error", _tail(error), _where(error)) from error
        except Exception as error:  # passes of the compiler and its assembler raise plain errors
            raise HostFailed("compile-error", f"{type(error).__name__}: {_tail(error)}", _where(error)) from error
        if callable(grid):
            bound = self.signature.bind_partial(*args, **{k: v for k, v in options.items() if k in self.arg_names})
            bound.apply_defaults()
            grid = grid(dict(bound.arguments))
        launches.append((kernel, tuple(int(extent) for extent in grid)))
        return kernel

    driver.set_active(StubDriver(int(cell["arch"])))
    jit.JITFunction.run = warm_up
    torch.cuda.get_device_capability = lambda *_: divmod(int(cell["arch"]), 10)
    try:
        host(*[_argument(argument) for argument in cell["arguments"]])
    except HostFailed:
        raise
    except BaseException as error:
        raise HostFailed("runtime-error", f"{type(error).__name__}: {_tail(error)}", _where(error)) from error
    finally:
        jit.JITFunction.run, torch.cuda.get_device_capability = original_run, original_capability
    if not launches:
        raise HostFailed("no-kernel-launched", "the host function launched no kernel")
    return launches


def _argument(argument: dict[str, Any]) -> Any:
    """A tensor without data whose address counts as aligned to 16 bytes, or the number itself."""
    if argument["kind"] != "tensor":
        return argument["value"]
    import torch

    return torch.empty(argument["shape"], dtype=getattr(torch, argument["dtype"]), device="meta")


def _describe(kernel: Any, grid: tuple[int, ...], cell: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Registers, spills, shared memory, instructions and path of one compiled kernel, read from its binary."""
    known = Path(os.environ["TRITON_CACHE_DIR"]) / f"{kernel.hash}.{cell['target']}.json"
    if known.exists():
        return {**json.loads(known.read_text()), "grid": [*grid, 1, 1][:3]}
    cubin = scratch / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    usage = _tool("cuobjdump", "--dump-resource-usage", str(cubin))
    words = dict(word.split(":", 1) for word in usage.splitlines()[-1].split() if ":" in word)
    num_warps = int(kernel.metadata.num_warps)
    try:
        # -ndf: without the data-flow analysis that only annotates indirect branches
        listing = _tool("nvdisasm", "-c", "-ndf", str(cubin))
        sass = summarise(listing, num_warps, cell["dram_latency_cycles"], cell["l2_latency_cycles"])
    except ValueError as error:
        raise HostFailed("compile-error", f"the binary cannot be read: {error}") from error
    description = {
        "kernel": str(kernel.metadata.name)[:200],
        "grid": [*grid, 1, 1][:3],
        "num_warps": num_warps,
        "registers": int(words["REG"]),
        "stack_bytes": int(words["STACK"]),
        # Triton asks for its shared memory at launch; what the binary itself reserves is not part of it
        "shared_bytes": int(kernel.metadata.shared),
        "sass": sass.to_json(),
    }
    known.write_text(json.dumps(description))
    return description


def _tool(name: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    command = [str(path), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise HostFailed("timeout", f"{name} took longer than {TOOL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise HostFailed("compile-error", f"{name}: {done.stderr.strip()}")
    return done.stdout


def _tail(error: BaseException) -> str:
    return str(error).strip()[-MOST_DETAIL_CHARS:]


def _where(error: BaseException) -> str:
    """The innermost line of the candidate that the error went through."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(CANDIDATE_FILE)
    ]
    return f"{CANDIDATE_FILE}:{lines[-1]}" if lines else ""


# --- one child per request -------------------------------------------------------------------------------------------


def handle(message: bytes) -> bytes:
    """Fork, compile in the child, return its JSON; a child that dies, hangs or floods is a reason, not an error."""
    request = json.loads(message)
    scratch = Path(tempfile.mkdtemp(prefix="compile-"))
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _child(request, scratch, write_end)
    os.close(write_end)
    try:
        data, problem = _read(read_end, float(request["timeout_s"]))
    finally:
        os.close(read_end)
        for number in (child, -child):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not request.get("cache_dir"):
            shutil.rmtree(scratch, ignore_errors=True)
    problem = problem or _ending(status)
    if problem is None:
        try:
            json.loads(data)
            return data
        except ValueError:
            problem = HostFailed("protocol-violation", "the compiling process ended without an answer")
    return json.dumps({"cells": [_failure(cell, problem) for cell in request["cells"]]}).encode()


def _ending(status: int) -> HostFailed | None:
    """What a child's end says: out of processor time, stopped by the filter of ``kernels.confine``, or nothing."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return HostFailed("timeout", "compiling took more processor time than it may")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
        return HostFailed("process-violation", "compiling it touched another process")
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == EXIT_SANDBOX:
        return HostFailed("sandbox-violation", "compiling it asked the system for what the sandbox refuses")
    return None


def _child(request: dict[str, Any], scratch: Path, write_end: int) -> None:
    """Never returns. Runs foreign code: no channel, no terminal, own process group, own Triton cache, bounded."""
    status = 1
    try:
        leave_channel()
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.environ["TRITON_CACHE_DIR"] = request.get("cache_dir") or str(scratch / "cache")
        os.environ["HOME"] = os.environ["TMPDIR"] = str(scratch)
        restrict(
            allow_exec=True, memory_bytes=MOST_MEMORY_BYTES, file_bytes=MOST_FILE_BYTES, cpu_s=int(request["cpu_s"])
        )
        reply = json.dumps(compile_cells(request, scratch)).encode()
        view = memoryview(reply)
        while view:
            view = view[os.write(write_end, view) :]
        status = 0
    finally:
        os._exit(status)


def _read(descriptor: int, timeout_s: float) -> tuple[bytes, HostFailed | None]:
    data, deadline = bytearray(), time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return b"", HostFailed("timeout", f"compiling took longer than {timeout_s:g} s")
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return bytes(data), None
        data += chunk
        if len(data) > MOST_REPLY_BYTES:
            return b"", HostFailed("output-flood", "the answer of the compiling process is too large")


def warm_up(architectures: list[int]) -> None:
    """Load everything that compiling needs, so that the children find it loaded."""
    import torch  # noqa: F401
    import triton  # noqa: F401

    scratch = Path(tempfile.mkdtemp(prefix="warm-"))
    os.environ["TRITON_CACHE_DIR"] = str(scratch / "cache")
    argument = {"kind": "tensor", "shape": [256], "dtype": "bfloat16"}
    cells = [
        {"target": str(arch), "size": 0, "arch": arch, "arguments": [argument], "dram_latency_cycles": 1,
         "l2_latency_cycles": 1}
        for arch in architectures
    ]  # fmt: skip
    reply = compile_cells({"source": _WARM_UP, "host": "host", "cells": cells}, scratch)
    shutil.rmtree(scratch, ignore_errors=True)
    broken = [cell["reason"] for cell in reply["cells"] if "reason" in cell]
    if broken:
        raise SystemExit(f"the compiler does not work here: {broken[0]}")


def main() -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # unset, Triton 3.9 warns; its default flips in 3.10
    warm_up([80, 90])
    hide_from_others()
    gc.freeze()  # a child that collects must not copy the parent's pages
    serve(handle, sys.argv[1] if len(sys.argv) > 1 else CHANNEL)


if __name__ == "__main__":
    main()
