"""Why a candidate was refused: the closed list of reason codes, each with one sentence for people.

``nightshift kernel language`` prints the list. A code that is not in ``CODES`` cannot be constructed, so the list in
the documentation is the list in the program.
"""

from __future__ import annotations

from dataclasses import dataclass

CODES: dict[str, str] = {
    "syntax": "The file is not Python that can be parsed.",
    "missing-host-function": "The host function that the task names is not defined at module level.",
    "signature": "The host function cannot be called with the task's arguments by position.",
    "forbidden-import": "An import outside torch, triton, triton.language, math and the listed device functions.",
    "forbidden-name": "A name that the language does not know.",
    "forbidden-construct": "A statement or expression that the language does not have.",
    "forbidden-call": "A call that the language does not allow.",
    "module-state": "Something would survive a call: a mutable global, an attribute, a default, a closure.",
    "host-compute": "Values are computed outside of a kernel: through torch, numpy or Python numbers.",
    "no-kernel-launched": "The host function returned without launching a kernel.",
    "compile-error": "Triton's compiler refused the kernel for a target.",
    "runtime-error": "The candidate raised while it ran.",
    "wrong-shape": "An output, or the number of outputs, has another shape than the reference.",
    "wrong-dtype": "An output has another dtype than the task declares.",
    "wrong-type": "An output is not a plain torch.Tensor.",
    "unwritten-output": "Elements of an output were never written.",
    "nonfinite-output": "An output is NaN or infinite where the reference is finite, or the other way round.",
    "numerical-mismatch": "The error against the fp64 reference is above the budget.",
    "input-modified": "An input that the task does not declare as mutated was written.",
    "output-aliases-input": "An output shares memory with an input.",
    "out-of-bounds-read": "A kernel read an address outside of every declared tensor.",
    "out-of-bounds-write": "A kernel wrote an address outside of every declared tensor.",
    "uninitialised-read": "A kernel read an element that nobody had written.",
    "race": "Two programs touch one address, at least one writes, and no atomic orders them.",
    "order-dependent": "The result is right in one order of programs and wrong in another.",
    "nondeterministic": "The same call in the same order gave different bits.",
    "below-floor": "Fewer bytes were moved than any right kernel must move: the result came from elsewhere.",
    "stale-result": "The result belongs to an earlier call.",
    "timeout": "The deadline passed.",
    "out-of-memory": "More memory was asked for than the sandbox has.",
    "output-flood": "More was printed or written to files than the sandbox allows.",
    "process-violation": "The candidate tried to start, signal, trace or detach a process or thread.",
    "sandbox-violation": "The candidate reached for files, network, or interpreter internals outside of its room.",
    "protocol-violation": "The reply from the sandbox was missing, forged, oversized or malformed.",
    "judge-unavailable": "The judge itself could not decide (verdict `error`); nothing is said about the candidate.",
}


@dataclass(frozen=True)
class Reason:
    """One finding. ``where`` is ``candidate.py:LINE`` or empty; ``detail`` names the rule and may end in a hint."""

    code: str
    detail: str
    where: str = ""

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"unknown reason code {self.code!r}")

    def to_json(self) -> dict[str, str]:
        """The form that ``kernel check --json`` prints."""
        return {"code": self.code, "detail": self.detail, "where": self.where}
