"""Reads a disassembled kernel (SASS text of ``nvdisasm -c``): sizes, instruction mix, spills, loops, critical path.

The critical path is that of one warp alone on an SM that issues in order and stalls where an operand is not ready,
which is how these GPUs work: the compiler sets a scoreboard per long-latency result and fixed stall counts otherwise
(Jia et al., Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking, arXiv:1804.06826). A loop is walked
once on the straight path and once more for the cycles of one further iteration.

Not covered: branches other than loops (walked as if not taken), bank conflicts, subroutines behind the last EXIT.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_LABEL = re.compile(r"^\s*(\.L_x?_?\d+):", re.MULTILINE)
_REGISTER = re.compile(r"\b(UR|R|UP|P)(\d+)\b(\.64)?")

# Dependent-issue latencies in cycles; Luo et al., arXiv:2402.13499, and Abdelkhalik et al., Demystifying the Nvidia
# Ampere Architecture through Microbenchmarking, arXiv:2208.11174, rounded.
_LATENCY_CYCLES = {
    "MUFU": 23, "SHFL": 23, "LDS": 23, "LDL": 33, "S2R": 23, "S2UR": 23, "CS2R": 8, "LDC": 23, "ULDC": 8, "LDCU": 8,
    "I2F": 14, "F2I": 14, "F2F": 14, "I2FP": 5, "REDUX": 23, "VOTE": 8, "R2UR": 8, "LDSM": 29, "HMMA": 24, "ATOMS": 40,
}  # fmt: skip
_ALU_CYCLES = 4
_BARRIER_BASE_CYCLES = 20
"""A barrier alone; each further warp of the program adds a cycle of arrival (assumed: one arrival a cycle)."""

_NO_RESULT = (
    "ST", "BAR", "BRA", "EXIT", "NOP", "LDGSTS", "LDGDEPBAR", "DEPBAR", "MEMBAR", "RED", "BSYNC", "WARPSYNC", "CALL",
    "RET", "ERRBAR", "CCTL", "BREAK", "KILL", "YIELD",
)  # fmt: skip
_PIPES = {
    "fp32": ("FADD", "FMUL", "FFMA", "FSWZADD", "HFMA2", "HADD2", "HMUL2", "IMAD"),
    "special": ("MUFU", "I2F", "F2I", "F2F"),
    "shuffle": ("SHFL", "REDUX"),
    "memory": ("LDG", "STG", "LDS", "STS", "LDL", "STL", "LDGSTS", "LDSM", "STSM", "ATOM", "ATOMS", "ATOMG", "RED"),
    "tensor": ("HMMA", "IMMA", "HGMMA", "IGMMA", "DMMA"),
    "control": ("BAR", "BRA", "EXIT", "NOP", "LDGDEPBAR", "DEPBAR", "BSYNC", "BSSY", "WARPSYNC", "CALL", "RET"),
}


@dataclass(frozen=True)
class Instruction:
    """One line: address, guard predicate, opcode with modifiers, operands."""

    address: int
    guard: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]

    @property
    def access_bytes(self) -> int:
        """Bytes that a thread moves by this memory instruction."""
        for modifier in self.modifiers:
            if modifier in ("64", "128"):
                return int(modifier) // 8
            if modifier in ("U16", "S16"):
                return 2
            if modifier in ("U8", "S8"):
                return 1
        return 4

    @property
    def pipe(self) -> str:
        for pipe, opcodes in _PIPES.items():
            if self.opcode in opcodes:
                return pipe
        return "int"


@dataclass
class Segment:
    """What a stretch of code issues per thread; cycles of one warp with DRAM or L2 latency on global loads."""

    instructions: int = 0
    pipes: dict[str, int] = field(default_factory=dict)
    load_bytes: int = 0
    store_bytes: int = 0
    cycles_dram: float = 0.0
    cycles_l2: float = 0.0


@dataclass
class SassSummary:
    """A kernel's binary in numbers. ``straight`` has every instruction once; ``loops`` has a loop's body once more."""

    instructions: int
    mix: dict[str, int]
    spill_store_bytes: int
    spill_load_bytes: int
    straight: Segment
    loops: list[Segment]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> SassSummary:
        parts = {**data, "straight": Segment(**data["straight"]), "loops": [Segment(**loop) for loop in data["loops"]]}
        return SassSummary(**parts)


def parse(text: str) -> list[Instruction]:
    """The instructions of the first function in ``text``, without padding and the trap loop at the end.

    Branch targets are addresses: nvdisasm's labels are replaced by the address of the instruction that follows them.
    """
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label is not None:
            waiting.append(label.group(1))
            continue
        match = _LINE.search(line)
        if match is None:
            continue
        address, guard, name, operands = match.groups()
        if instructions and int(address, 16) <= instructions[-1].address:
            break  # the next function begins
        labels |= dict.fromkeys(waiting, int(address, 16))
        waiting = []
        opcode, *modifiers = name.split(".")
        parts = tuple(part.strip() for part in operands.split(",") if part.strip())
        instructions.append(Instruction(int(address, 16), (guard or "").strip(), opcode, tuple(modifiers), parts))
    code = [_resolved(item, labels) for item in instructions]
    while code and (code[-1].opcode == "NOP" or _jump(code[-1]) == code[-1].address):
        code.pop()
    return code


def _resolved(item: Instruction, labels: dict[str, int]) -> Instruction:
    """The branch with its label replaced by an address."""
    target = item.operands[-1].strip("`()") if item.opcode == "BRA" and item.operands else ""
    if target not in labels:
        return item
    return dataclasses.replace(item, operands=(*item.operands[:-1], hex(labels[target])))


def summarise(text: str, num_warps: int, dram_latency: float, l2_latency: float) -> SassSummary:
    """Everything the cost model needs of a disassembly. Raises ValueError when there is no code in ``text``."""
    code = parse(text)
    if not code:
        raise ValueError("no instructions in the disassembly")
    straight, loops = _segment(code), []
    spans = _loop_spans(code)
    paths = [_walk(code, spans, num_warps, latency) for latency in (dram_latency, l2_latency)]
    straight.cycles_dram, straight.cycles_l2 = paths[0][0], paths[1][0]
    for index, (first, last) in enumerate(spans):
        loop = _segment(code[first : last + 1])
        loop.cycles_dram, loop.cycles_l2 = paths[0][1][index], paths[1][1][index]
        loops.append(loop)
    return SassSummary(
        instructions=len(code),
        mix=dict(sorted(Counter(item.opcode for item in code).items())),
        spill_store_bytes=sum(item.access_bytes for item in code if item.opcode == "STL"),
        spill_load_bytes=sum(item.access_bytes for item in code if item.opcode == "LDL"),
        straight=straight,
        loops=loops,
    )


def _segment(code: list[Instruction]) -> Segment:
    return Segment(
        instructions=len(code),
        pipes=dict(sorted(Counter(item.pipe for item in code).items())),
        load_bytes=sum(item.access_bytes for item in code if item.opcode in ("LDG", "LDGSTS")),
        store_bytes=sum(item.access_bytes for item in code if item.opcode == "STG"),
    )


def _jump(item: Instruction) -> int | None:
    """Where a branch goes, or None."""
    if item.opcode != "BRA" or not item.operands:
        return None
    target = item.operands[-1].strip("`()")
    return int(target, 16) if target.startswith("0x") else None


def _loop_spans(code: list[Instruction]) -> list[tuple[int, int]]:
    """Innermost loops as (first, last) indices: backward branches whose body holds no other backward branch."""
    index_of = {item.address: index for index, item in enumerate(code)}
    spans = []
    for last, item in enumerate(code):
        jump = _jump(item)
        if jump is not None and jump < item.address and jump in index_of:
            spans.append((index_of[jump], last))
    return [span for span in spans if not any(other != span and span[0] <= other[0] and other[1] <= span[1]
                                              for other in spans)]  # fmt: skip


class _Warp:
    """One warp's clock: when each register is ready, and which groups of asynchronous copies are under way."""

    def __init__(self, num_warps: int, load_latency: float) -> None:
        self.now = 0.0
        self.ready: dict[str, float] = {}
        self.copies = 0.0
        self.groups: list[float] = []
        self.num_warps, self.load_latency = num_warps, load_latency

    def issue(self, item: Instruction) -> None:
        results, sources = _registers(item)
        start = max([self.now + 1, *(self.ready.get(name, 0.0) for name in sources)])
        if item.opcode == "BAR":
            start += _BARRIER_BASE_CYCLES + self.num_warps if self.num_warps > 1 else 0
        elif item.opcode == "LDGSTS":
            self.copies = max(self.copies, start + self.load_latency)
        elif item.opcode == "LDGDEPBAR":
            self.groups.append(self.copies)
        elif item.opcode == "DEPBAR" and self.groups:
            still_open = int(item.operands[-1], 16) if item.operands[-1].startswith("0x") else 0
            finished = self.groups[: len(self.groups) - still_open]
            start = max([start, *finished])
        self.now = start
        done = start + self._latency(item)
        for name in results:
            self.ready[name] = done

    def _latency(self, item: Instruction) -> float:
        if item.opcode in ("LDG", "ATOM", "ATOMG"):
            return self.load_latency
        return _LATENCY_CYCLES.get(item.opcode, _ALU_CYCLES)


def _walk(
    code: list[Instruction], spans: list[tuple[int, int]], num_warps: int, load_latency: float
) -> tuple[float, list[float]]:
    """Cycles of the whole code with each loop run once, and for each loop the cycles of one more iteration."""
    warp = _Warp(num_warps, load_latency)
    extra = [0.0] * len(spans)
    end = _last_exit(code)
    for index, item in enumerate(code[: end + 1]):
        warp.issue(item)
        for number, (first, last) in enumerate(spans):
            if last == index:
                again = _Warp(num_warps, load_latency)
                again.now, again.ready = warp.now, dict(warp.ready)
                again.copies, again.groups = warp.copies, list(warp.groups)
                # the first repetition still waits for what came before the loop; the second one is the steady state
                for _ in range(2):
                    before = again.now
                    for body_item in code[first : last + 1]:
                        again.issue(body_item)
                    extra[number] = again.now - before
    return warp.now, extra


def _last_exit(code: list[Instruction]) -> int:
    """Index of the EXIT behind which only subroutines lie: no branch from before it leads past it."""
    reach = 0
    for index, item in enumerate(code):
        jump = _jump(item)
        reach = max(reach, jump if jump is not None else 0)
        if item.opcode == "EXIT" and not item.guard and reach <= item.address:
            return index
    return len(code) - 1


@functools.lru_cache(maxsize=1 << 14)
def _registers(item: Instruction) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the registers that an instruction writes and reads."""
    split = 0
    if not item.opcode.startswith(_NO_RESULT) and item.operands:
        # results come first: a register with its carry predicates, or predicates with at most one register
        split = 1
        plain = item.operands[0].startswith(("R", "UR"))
        for operand in item.operands[1:]:
            is_predicate = re.fullmatch(r"U?P[T\d]", operand) is not None
            if is_predicate or (not plain and operand.startswith(("R", "UR")) and item.opcode == "SHFL"):
                split += 1
                plain = plain or not is_predicate
            else:
                break
    wide = max(1, item.access_bytes // 4) if item.pipe == "memory" or "64" in item.modifiers else 1
    if "WIDE" in item.modifiers or (item.opcode == "CS2R" and "32" not in item.modifiers):
        wide = 2
    results = [name for operand in item.operands[:split] for name in _names(operand, wide)]
    sources = [name for operand in item.operands[split:] for name in _names(operand, 1)]
    if item.opcode.startswith("ST") and item.operands:
        sources += _names(item.operands[-1], wide)
    if item.guard:
        sources += _names(item.guard.lstrip("@!"), 1)
        sources += results  # where the guard is false the old value stays: a result waits for its earlier writer
    return tuple(results), tuple(sources)


def _names(operand: str, width: int) -> list[str]:
    names = []
    for kind, number, pair in _REGISTER.findall(operand):
        count = 2 if pair else width if kind in ("R", "UR") else 1
        names += [f"{kind}{int(number) + offset}" for offset in range(count)]
    return names
