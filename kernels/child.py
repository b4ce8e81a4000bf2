"""The child that runs one candidate: forked from the warm guest, confined, gone after one answer.

It gets a request (see ``kernels/judge.py``), runs each case, and writes a frame per run to its pipe as soon as it has
it, so that a child that hangs in its fifth case has still shown four. Nothing it writes is a verdict.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from kernels import confine
from kernels.dtypes import DTYPES
from kernels.host import TORCH_DTYPES, HostCompute, HostMode, element_offsets, guarded, raw_bytes
from kernels.interpreter import Harness
from kernels.sanitizer import EMPTY, GAP, GIVEN, SOURCE_FILE, Buffer, Memory
from kernels.wire import Blobs, frame, pack, slice_of, unpack

CAPABILITY = {"sm_80": (8, 0), "sm_89": (8, 9), "sm_90": (9, 0), "sm_100": (10, 0), "sm_120": (12, 0)}
PROCESSORS = {"sm_80": 108, "sm_89": 142, "sm_90": 132, "sm_100": 148, "sm_120": 188}


class Child:
    """State of one candidate's run."""

    def __init__(self, request: bytes, harness: Harness, send: Callable[[bytes], None]) -> None:
        self.header, self.blob = unpack(request)
        self.harness, self._send = harness, send
        self._pool: dict[Any, tuple[torch.Tensor, Buffer]] = {}
        self._launches: list[dict[str, Any]] = []
        self._arm = confine.watch(self._readable(), self._violation)

    def run(self) -> None:
        """All cases, until one raises; ends with a frame ``{"done": true}``."""
        np.seterr(all="ignore")
        confine.restrict(
            memory_bytes=self.header["memory_bytes"],
            file_bytes=self.header["output_bytes"],
            cpu_s=self.header["cpu_s"],
        )
        host = self._load()
        if host is None:
            return
        for case in self.header["cases"]:
            for number, seed in enumerate(case["orders"]):
                if not self._one(host, case, number, seed):
                    return
        self._reply({"done": True})

    def _reply(self, header: dict[str, Any], blobs: bytes = b"") -> None:
        self._send(frame(pack(header, blobs)))

    def _violation(self, status: int, what: str) -> None:
        self._reply({"violation": what[:200], "status": status})
        os._exit(status)

    @staticmethod
    def _readable() -> tuple[str, ...]:
        paths = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), str(Path(__file__).parents[1])}
        paths |= {entry for entry in sys.path if entry} | {"/usr/lib", "/lib", "/dev/null", SOURCE_FILE}
        return tuple(sorted({os.path.normpath(path) for path in paths} | {os.path.realpath(path) for path in paths}))

    def _load(self) -> Callable[..., Any] | None:
        """Import the candidate under its file name, so that tracebacks and findings name its lines."""
        import linecache

        source = self.header["source"]
        linecache.cache[SOURCE_FILE] = (len(source), None, source.splitlines(keepends=True), SOURCE_FILE)
        module = types.ModuleType("candidate")
        module.__file__ = SOURCE_FILE
        sys.modules["candidate"] = module
        self._patch_device("sm_90")
        try:
            self._arm()
            exec(compile(source, SOURCE_FILE, "exec"), module.__dict__)  # noqa: S102 - confined above
            host = module.__dict__[self.header["host"]]
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the candidate's
            self._reply({"load": True, "error": _described(error)})
            return None
        assert callable(host)
        return host  # type: ignore[no-any-return]

    def _patch_device(self, target: str) -> None:
        """The device that the candidate believes to run on."""
        capability = CAPABILITY[target]
        properties = types.SimpleNamespace(
            name=target,
            multi_processor_count=PROCESSORS[target],
            major=capability[0],
            minor=capability[1],
            warp_size=32,
        )
        torch.cuda.get_device_capability = lambda device=None: capability  # noqa: ARG005  torch's own signature
        patched: Any = torch.cuda  # the stand-in has only what a host function may ask for
        patched.get_device_properties = lambda device=None: properties  # noqa: ARG005

    def _one(self, host: Callable[..., Any], case: dict[str, Any], number: int, seed: int | None) -> bool:
        """One call of the host function; False when there is nothing more to learn."""
        self._patch_device(case["target"])
        memory = Memory()
        self.harness.use(memory, seed)
        self._launches = []
        self.harness.on_launch = self._note_launch
        arguments, inputs = self._arguments(case, memory)
        mode = HostMode(memory, lambda: self.harness.inside_launch)
        error, result = None, None
        try:
            with mode:
                result = host(*arguments)
        except BaseException as caught:  # noqa: BLE001
            error = _described(caught)
        header: dict[str, Any] = {"case": case["id"], "run": number, "error": error, "findings": memory.findings}
        blobs = Blobs()
        if error is None:
            header["outputs"] = self._outputs(result, inputs, memory, blobs)
        header["counted"] = vars(memory.counted) | {"launches": self._launches}
        self._reply(header, blobs.joined())
        outputs = header.get("outputs", [])
        hopeless = memory.findings or any(o.get("aliased") or o.get("unwritten") or o.get("foreign") for o in outputs)
        return error is None and not hopeless

    def _arguments(self, case: dict[str, Any], memory: Memory) -> tuple[list[Any], list[tuple[torch.Tensor, Buffer]]]:
        """The arguments in order; tensors of one place and shape live at one address in every call, with new values."""
        arguments: list[Any] = []
        inputs = []
        for place, item in enumerate(case["arguments"]):
            if item["kind"] != "tensor":
                arguments.append(item["value"])
                continue
            dtype = item["dtype"]
            key = (place, tuple(item["shape"]), tuple(item["stride"]), dtype, item["offset"])
            if key not in self._pool:
                self._pool[key] = guarded(
                    f"input {item['name']}", item["shape"], item["stride"], TORCH_DTYPES[dtype], item["offset"],
                    writable=item["mutable"],
                )  # fmt: skip
            tensor, buffer = self._pool[key]
            data = bytearray(slice_of(self.blob, item))
            if data:
                values = torch.frombuffer(data, dtype=TORCH_DTYPES[dtype]).reshape(item["shape"])
                tensor.copy_(values)
            buffer.state[buffer.state != GAP] = GIVEN
            memory.add(buffer)
            arguments.append(tensor)
            inputs.append((tensor, buffer))
        return arguments, inputs

    def _note_launch(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> None:
        if len(self._launches) >= 64:
            raise RuntimeError("more than 64 launches in one call")
        bound = dict(zip(function.arg_names, args, strict=False)) | kwargs
        constexprs = {p.name for p in getattr(function, "params", []) if p.is_constexpr}
        described = [_argument(name, bound[name], name in constexprs) for name in function.arg_names if name in bound]
        options = {name: value for name, value in kwargs.items() if name not in function.arg_names}
        self._launches.append(
            {
                "kernel": str(function.__name__)[:200],
                "grid": list(grid),
                "args": described,
                "options": {name: value for name, value in options.items() if isinstance(value, int | str)},
            }
        )

    def _outputs(self, result: Any, inputs: list[Any], memory: Memory, blobs: Blobs) -> list[dict[str, Any]]:
        """What came back: type, shape, dtype, bytes, and what the sanitizer knows of its elements."""
        described = []
        for item in result if isinstance(result, tuple | list) else (result,):
            if type(item) is not torch.Tensor:
                described.append({"type": f"{type(item).__module__}.{type(item).__qualname__}"[:200]})
                continue
            dtype = str(item.dtype).removeprefix("torch.")
            entry: dict[str, Any] = {"type": "tensor", "shape": list(item.shape), "dtype": dtype}
            if dtype in DTYPES and item.numel() * item.element_size() <= self.header["max_output_bytes"]:
                entry |= blobs.add(raw_bytes(item))
            entry |= self._provenance(item, inputs, memory)
            described.append(entry)
        return described

    @staticmethod
    def _provenance(item: torch.Tensor, inputs: list[Any], memory: Memory) -> dict[str, int]:
        addresses = item.data_ptr() + element_offsets(item.shape, item.stride()) * item.element_size()
        aliased = 0
        for _, buffer in inputs:
            aliased += int(((addresses >= buffer.start) & (addresses < buffer.start + buffer.nbytes)).sum())
        states = memory.states(addresses)
        return {
            "aliased": aliased,
            "unwritten": int((states == EMPTY).sum()),
            "foreign": int((states == GAP).sum()),
            "elements": int(addresses.size),
        }


def _argument(name: str, value: Any, constexpr: bool) -> dict[str, Any]:
    """A launch argument as the compiler specialises it (triton.runtime.jit: divisibility by 16, ones)."""
    if isinstance(value, torch.Tensor):
        types_by_dtype = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "int32": "*i32", "int64": "*i64"}
        kind = types_by_dtype.get(str(value.dtype).removeprefix("torch."), "*i8")
        return {"name": name, "kind": "pointer", "type": kind, "divisible_by_16": value.data_ptr() % 16 == 0}
    if constexpr or not isinstance(value, int | float):
        return {
            "name": name,
            "kind": "constexpr",
            "value": value if isinstance(value, int | float | str) else str(value),
        }
    if isinstance(value, float):
        return {"name": name, "kind": "float", "type": "fp32", "value": value}
    return {"name": name, "kind": "int", "type": "i32" if -(2**31) <= value < 2**31 else "i64", "value": int(value)}


def _described(error: BaseException) -> dict[str, Any]:
    """Exception type, message and the candidate's line, through the interpreter's wrapping."""
    if isinstance(error, HostCompute):
        return {"type": "HostCompute", "message": str(error)[:300], "line": 0}
    line, cause = 0, error
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(seen) < 8:
        seen.append(current)
        for step in traceback.extract_tb(current.__traceback__):
            if step.filename == SOURCE_FILE and step.lineno:
                line = step.lineno
        cause, current = current, current.__cause__
    out_of_memory = (
        isinstance(cause, MemoryError) or "can't allocate memory" in str(cause) or "not enough memory" in str(cause)
    )
    kind = "MemoryError" if out_of_memory else type(cause).__name__
    return {"type": kind[:80], "message": str(cause)[:300], "line": line}


def prepare() -> Harness:
    """In the warm guest, before any fork: imports, patches, and one small launch that makes lazy things happen."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    harness = Harness()
    harness.attach()
    from kernels.warmup import warm

    warm(harness)
    assert triton.knobs is not None
    gc.collect()
    gc.freeze()  # children share these pages
    return harness
