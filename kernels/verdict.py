"""From the bytes that came out of the sandbox to reasons: nothing in them is believed, everything is checked.

A reply is a status header of the guest and the frames that the child wrote. Findings of the sanitizer and counts can
only reject. Where a mechanism was seen in a call, the numerical error that it caused is not reported again.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any

from kernels.cases import Case
from kernels.confine import EXIT_PROCESS, EXIT_SANDBOX
from kernels.dtypes import DTYPES, decode, poison
from kernels.oracle import Comparison, compare
from kernels.reasons import CODES, Reason
from kernels.sanitizer import SOURCE_FILE
from kernels.task import Task
from kernels.wire import WireError, frames, slice_of, unpack

MAX_REASONS = 12
FINDING_CODES = frozenset(
    "out-of-bounds-read out-of-bounds-write uninitialised-read race input-modified host-compute forbidden-call".split()
)

FIRST = (
    "process-violation", "sandbox-violation", "output-flood", "input-modified", "out-of-bounds-write",
    "out-of-bounds-read", "uninitialised-read", "race", "output-aliases-input", "host-compute",
)  # fmt: skip
"""Mechanisms in the order in which they are named: one bad access often makes another."""


@dataclass
class Tally:
    """What a reply showed: reasons (empty: right), errors per case, counts per case."""

    reasons: list[Reason] = field(default_factory=list)
    correctness: list[dict[str, Any]] = field(default_factory=list)
    counted: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, code: str, detail: str, line: object = 0, *, held_out: bool = False) -> None:
        """One reason; of a held-out case only the code, the place and the fact."""
        where = f"{SOURCE_FILE}:{line}" if type(line) is int and 0 < line < 10**6 else ""
        reason = Reason(code, "on a held-out shape" if held_out else detail[:400], where)
        if len(self.reasons) < MAX_REASONS and not any(r.code == code and r.where == where for r in self.reasons):
            self.reasons.append(reason)


def evaluate(task: Task, cases: list[Case], reply: bytes, *, sanitize_only: bool = False) -> Tally:
    """The tally of one reply to these cases. ``sanitize_only`` leaves the numerical comparison out."""
    tally = Tally()
    evaluation = _Evaluation(task, cases, tally, sanitize_only)
    try:
        status, stream = unpack(reply)
        evaluation.read(stream, status)
    except (WireError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        if not tally.reasons:
            tally.add("protocol-violation", f"the reply cannot be read: {type(error).__name__}: {error}")
    tally.reasons.sort(key=lambda reason: FIRST.index(reason.code) if reason.code in FIRST else len(FIRST))
    return tally


class _Evaluation:
    def __init__(self, task: Task, cases: list[Case], tally: Tally, sanitize_only: bool) -> None:
        self.task, self.tally, self.sanitize_only = task, tally, sanitize_only
        self.cases = {case.number: case for case in cases}
        self.expected_runs = [(case.number, run) for case in cases for run in range(len(case.orders))]
        self.natural: dict[int, list[bytes]] = {}
        self.passed: dict[int, bool] = {}
        self.earlier: dict[tuple[Any, ...], list[tuple[int, list[bytes]]]] = {}
        self.done = self.stopped = self.hopeless = False

    def read(self, stream: memoryview, status: dict[str, Any]) -> None:
        """All frames in order, then how the child ended."""
        seen = 0
        cut_off: WireError | None = None
        try:
            for message in frames(stream):
                header, blob = unpack(message)
                if self.done or self.stopped:
                    raise WireError("frames after the end")
                if header.get("done") is True:
                    if seen != len(self.expected_runs):
                        raise WireError(f"the end after {seen} of {len(self.expected_runs)} runs")
                    self.done = True
                elif "violation" in header:
                    self._violation(header)
                elif header.get("load") is True:
                    self._raised(header["error"], None)
                else:
                    if seen >= len(self.expected_runs) or (header["case"], header["run"]) != self.expected_runs[seen]:
                        raise WireError("a run that was not asked for")
                    seen += 1
                    self._run(self.cases[header["case"]], header["run"], header, blob)
        except WireError as error:
            cut_off = error
        self._ended(status, cut_off)

    def _violation(self, header: dict[str, Any]) -> None:
        self.stopped = True
        code = "process-violation" if header.get("status") == EXIT_PROCESS else "sandbox-violation"
        self.tally.add(code, f"tried {str(header['violation'])[:200]}")

    def _ended(self, status: dict[str, Any], cut_off: WireError | None) -> None:
        """What the end of the process says that the frames did not."""
        ended, number, code = status.get("ended"), status.get("signal"), status.get("exit")
        if ended == "timeout":
            self.tally.add("timeout", "the deadline passed")
        elif ended == "oversized":
            self.tally.add("protocol-violation", "the reply was larger than all outputs together may be")
        elif number == signal.SIGSYS:
            self.tally.add("process-violation", "a system call that starts, signals, traces or detaches a process")
        elif code == EXIT_SANDBOX and not self.stopped:
            self.tally.add("sandbox-violation", "a system call that reaches out of the sandbox")
        elif code == EXIT_PROCESS and not self.stopped:
            self.tally.add("process-violation", "a process or thread was started")
        elif number == signal.SIGXFSZ or int(status.get("output_bytes") or 0) >= int(
            status.get("output_limit") or 1 << 60
        ):
            self.tally.add("output-flood", "more was printed or written than the sandbox allows")
        elif number == signal.SIGXCPU:
            self.tally.add("timeout", "the processor time was used up")
        elif number == signal.SIGKILL:
            self.tally.add("out-of-memory", "killed by the kernel")
        elif number is not None:
            self.tally.add("runtime-error", f"the process crashed with signal {number}")
        elif cut_off is not None:
            self.tally.add("protocol-violation", str(cut_off))
        elif not self.done and not self.stopped and not self.hopeless:
            self.tally.add("protocol-violation", f"the process ended with status {code} without an answer")

    def _raised(self, error: dict[str, Any], case: Case | None) -> None:
        self.stopped = True
        held_out = case is not None and case.held_out
        kind, message = str(error["type"]), str(error["message"])
        if kind == "MemoryError":
            self.tally.add("out-of-memory", message, error["line"], held_out=held_out)
        elif kind == "HostCompute":
            self.tally.add(
                "host-compute", f"torch computes outside of a kernel: {message}", error["line"], held_out=held_out
            )
        else:
            detail = f"{kind}: {message}" if not held_out else kind
            self.tally.add("runtime-error", detail, error["line"], held_out=held_out)

    def _run(self, case: Case, run: int, header: dict[str, Any], blob: memoryview) -> None:
        """One run of one case."""
        mechanism = self._findings(case, header)
        self.tally.counted.setdefault(case.number, header["counted"])
        if header["error"] is not None:
            if mechanism:
                self.stopped = True  # what was raised is a consequence
            else:
                self._raised(header["error"], case)
            return
        outputs = header["outputs"]
        marks = ("aliased", "unwritten", "foreign")
        self.hopeless |= mechanism or any(
            output.get(mark) for output in outputs for mark in marks
        )  # the child stops there
        raw = self._form(case, outputs, blob)
        if raw is None:
            return
        if not header["counted"].get("launches"):
            self.tally.add("no-kernel-launched", "the host function returned without a launch", held_out=case.held_out)
            return
        mechanism |= self._provenance(case, outputs, raw) or self._floor(case, header["counted"])
        if self.sanitize_only or mechanism:
            return
        self._numbers(case, run, raw)

    def _findings(self, case: Case, header: dict[str, Any]) -> bool:
        for finding in header["findings"]:
            code = finding["code"]
            if code not in FINDING_CODES or code not in CODES:
                raise WireError(f"a finding {code!r}")
            detail = str(finding["detail"])
            self.tally.add(code, detail, finding["line"], held_out=case.held_out)
        return bool(header["findings"])

    def _form(self, case: Case, outputs: list[dict[str, Any]], blob: memoryview) -> list[bytes] | None:
        """Number, type, dtype, shape and size of the outputs; their bytes if all is well."""
        raw = []
        if len(outputs) != self.task.outputs:
            self.tally.add(
                "wrong-shape", f"{len(outputs)} outputs, the task has {self.task.outputs}", held_out=case.held_out
            )
            return None
        for place, output in enumerate(outputs):
            reference, dtype = case.expected[place], self.task.output_dtype(place, case.dtype)
            shape = list(reference.shape)
            if output["type"] != "tensor":
                self.tally.add(
                    "wrong-type", f"{str(output['type'])[:100]} instead of torch.Tensor", held_out=case.held_out
                )
                return None
            if output["shape"] != shape:
                self.tally.add("wrong-shape", f"{output['shape']} instead of {shape}", held_out=case.held_out)
                return None
            if output["dtype"] != dtype:
                self.tally.add("wrong-dtype", f"{str(output['dtype'])[:40]} instead of {dtype}", held_out=case.held_out)
                return None
            data = bytes(slice_of(blob, output))
            if len(data) != reference.size * DTYPES[dtype].itemsize:
                raise WireError(f"{len(data)} bytes for {shape} {dtype}")
            raw.append(data)
        return raw

    def _provenance(self, case: Case, outputs: list[dict[str, Any]], raw: list[bytes]) -> bool:
        """Outputs that are inputs, that nobody wrote, or that no allocation of the host function holds."""
        bad = False
        for place, (output, data) in enumerate(zip(outputs, raw, strict=True)):
            dtype = self.task.output_dtype(place, case.dtype)
            size = DTYPES[dtype].itemsize
            mark = poison(dtype, 1)
            left = sum(data[i : i + size] == mark for i in range(0, len(data), size)) if mark in data else 0
            if output["aliased"]:
                self.tally.add(
                    "output-aliases-input", f"output {place} shares memory with an input", held_out=case.held_out
                )
                bad = True
            elif left:
                self.tally.add(
                    "unwritten-output",
                    f"{left} of {len(data) // size} elements of output {place}",
                    held_out=case.held_out,
                )
                bad = True
            elif output["foreign"] or output["unwritten"]:
                detail = f"output {place} was not written by a kernel"
                self.tally.add("host-compute", detail, held_out=case.held_out)
                bad = True
        return bad

    def _floor(self, case: Case, counted: dict[str, Any]) -> bool:
        """Fewer bytes than any right kernel moves: the values did not come through the kernel."""
        moved = sum(int(counted[name]) for name in ("load_bytes", "store_bytes", "atomic_bytes"))
        floor = self.task.bytes_floor(case.shape, DTYPES[case.dtype].itemsize)
        if moved < floor:
            self.tally.add("below-floor", f"{moved} bytes were moved, {floor} are needed", held_out=case.held_out)
        return moved < floor

    def _numbers(self, case: Case, run: int, raw: list[bytes]) -> None:
        compared = [self._compared(case, place, data) for place, data in enumerate(raw)]
        failed = next((item for item in compared if item.code is not None), None)
        if run == 0:
            self.natural[case.number], self.passed[case.number] = raw, failed is None
            worst = max(compared, key=lambda item: item.error / item.budget)
            self.tally.correctness.append(_entry(case, worst))
        if failed is not None:
            self._failed(case, run, failed, raw)
        elif case.orders[run] is None and raw != self.natural.get(case.number, raw):
            self.tally.add("nondeterministic", "the same call gave other bits the second time", held_out=case.held_out)
        self.earlier.setdefault((case.shape, case.dtype), []).append((case.number, raw))

    def _failed(self, case: Case, run: int, failed: Comparison, raw: list[bytes]) -> None:
        assert failed.code is not None
        shuffled = case.orders[run] is not None
        stale = any(
            number != case.number and data == raw and self.passed.get(number)
            for number, data in self.earlier.get((case.shape, case.dtype), [])
        )
        if stale:
            self.tally.add("stale-result", "the output is that of an earlier call", held_out=case.held_out)
        elif shuffled and self.passed.get(case.number):
            detail = f"right in the natural order of programs, wrong in another: {failed.detail}"
            self.tally.add("order-dependent", detail, held_out=case.held_out)
        elif run == 0 or not self.passed.get(case.number, False):
            detail = f"{failed.detail}; shape {list(case.shape)}, inputs `{case.scale}`"
            self.tally.add(failed.code, detail, held_out=case.held_out)
        else:
            self.tally.add("nondeterministic", f"right the first time only: {failed.detail}", held_out=case.held_out)

    def _compared(self, case: Case, place: int, data: bytes) -> Comparison:
        reference, dtype = case.expected[place], self.task.output_dtype(place, case.dtype)
        output = decode(data, dtype, reference.shape)
        return compare(output, reference, dtype, self.task.reduction_length(case.shape))


def _entry(case: Case, worst: Comparison) -> dict[str, Any]:
    shown: dict[str, Any] = {} if case.held_out else {"shape": list(case.shape)}
    error = worst.error if worst.error < float("inf") else None
    return {**shown, "dtype": case.dtype, "held_out": case.held_out, "relative_error": error, "budget": worst.budget}
