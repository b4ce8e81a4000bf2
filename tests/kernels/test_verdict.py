"""Replies that are forged, cut off, oversized or malformed: each a named rejection, no crash, no acceptance."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernels.cases import Case, Draw
from kernels.dtypes import encode, poison
from kernels.library import STARTER_DIR, load_task
from kernels.verdict import evaluate
from kernels.wire import Blobs, frame, pack

TASK = load_task(STARTER_DIR / "swiglu")
DONE = {"ended": "closed", "signal": None, "exit": 0, "output_bytes": 0, "output_limit": 1 << 20}
Header = dict[str, Any]


def _cases(*, held_out: bool = False, orders: int = 2) -> list[Case]:
    draw = Draw(b"secret", TASK, "candidate")
    draw.add((3, 5), "float32", "unit", target="sm_90", repeats=orders, held_out=held_out)
    draw.add((3, 5), "float32", "tiny", target="sm_90", repeats=1)
    return draw.cases


def _run(case: Case, run: int, data: bytes | None = None) -> tuple[Header, bytes]:
    """The frame of an honest child."""
    data = encode(case.expected[0], "float32") if data is None else data
    blobs = Blobs()
    output = {"type": "tensor", "shape": [3, 5], "dtype": "float32", **blobs.add(data)}
    output |= {"aliased": 0, "unwritten": 0, "foreign": 0, "elements": 15}
    counted = {"programs": 3, "load_bytes": 120, "store_bytes": 60, "atomic_bytes": 0, "launches": [{"kernel": "k"}]}
    return {
        "case": case.number, "run": run, "error": None, "findings": [], "outputs": [output], "counted": counted,
    }, blobs.joined()  # fmt: skip


def _honest(cases: list[Case]) -> list[tuple[Header, bytes]]:
    return [_run(case, run) for case in cases for run in range(len(case.orders))] + [({"done": True}, b"")]


def _reply(messages: list[tuple[Header, bytes]], status: Header | None = None, tail: bytes = b"") -> bytes:
    stream = b"".join(frame(pack(header, blob)) for header, blob in messages)
    return pack(status or DONE, stream + tail)


def _codes(reply: bytes, cases: list[Case]) -> list[str]:
    return [reason.code for reason in evaluate(TASK, cases, reply).reasons]


def test_an_honest_reply_is_right() -> None:
    cases = _cases()
    tally = evaluate(TASK, cases, _reply(_honest(cases)))
    assert tally.reasons == []
    assert [entry["shape"] for entry in tally.correctness] == [[3, 5], [3, 5]]


@pytest.mark.parametrize(
    "reply",
    [b"", b"PASS", b"\0" * 64, pack(DONE, b"\xff" * 40), pack(DONE, frame(b"garbage")), pack({}, b""), pack(DONE, b"")],
)
def test_garbage_is_a_protocol_violation(reply: bytes) -> None:
    assert _codes(reply, _cases()) == ["protocol-violation"]


def test_a_verdict_of_its_own_and_frames_too_many_or_too_few() -> None:
    cases = _cases()
    honest = _honest(cases)
    assert _codes(_reply([({"done": True, "verdict": "accepted"}, b"")]), cases) == ["protocol-violation"]
    assert _codes(_reply(honest[:-1]), cases) == ["protocol-violation"]
    assert _codes(_reply([*honest, honest[0]]), cases) == ["protocol-violation"]
    assert _codes(_reply([honest[1], honest[0], *honest[2:]]), cases) == ["protocol-violation"]
    assert _codes(_reply(honest, tail=b"\0\0"), cases) == ["protocol-violation"]


def _set(name: str, value: Any) -> Callable[[Header], None]:
    return lambda header: header["outputs"][0].update({name: value})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_set("type", "candidate.Lazy"), "wrong-type"),
        (_set("shape", [5, 3]), "wrong-shape"),
        (_set("dtype", "float16"), "wrong-dtype"),
        (_set("size", 8), "protocol-violation"),
        (_set("at", -4), "protocol-violation"),
        (_set("at", "0"), "protocol-violation"),
        (_set("aliased", 3), "output-aliases-input"),
        (_set("foreign", 3), "host-compute"),
        (lambda header: header.update(outputs=[]), "wrong-shape"),
        (lambda header: header.update(outputs=None), "protocol-violation"),
        (lambda header: header.pop("counted"), "protocol-violation"),
        (lambda header: header["counted"].update(launches=[]), "no-kernel-launched"),
        (lambda header: header["counted"].update(load_bytes=8), "below-floor"),
        (lambda header: header["counted"].update(load_bytes="many"), "protocol-violation"),
        (lambda header: header.update(findings=[{"code": "race", "detail": "d", "line": 3}]), "race"),
        (lambda header: header.update(findings=[{"code": "accepted", "detail": "d", "line": 3}]), "protocol-violation"),
        (lambda header: header.update(error={"type": "KeyError", "message": "m", "line": 3}), "runtime-error"),
        (lambda header: header.update(error={"type": "MemoryError", "message": "m", "line": 3}), "out-of-memory"),
    ],
)
def test_what_a_frame_may_say(change: Callable[[Header], None], code: str) -> None:
    cases = _cases()
    messages = copy.deepcopy(_honest(cases))
    change(messages[0][0])
    assert _codes(_reply(messages), cases)[0] == code


def test_wrong_numbers_get_the_name_of_their_mechanism() -> None:
    cases = _cases(orders=3)
    good = encode(cases[0].expected[0], "float32")
    wrong = encode(cases[0].expected[0] * 1.01, "float32")
    almost = encode(cases[0].expected[0] * (1 + 3e-7), "float32")

    def codes(*outputs: bytes) -> list[str]:
        runs = [_run(cases[0], run, data) for run, data in enumerate(outputs)]
        return _codes(_reply([*runs, _run(cases[1], 0), ({"done": True}, b"")]), cases)

    assert codes(good, good, good) == []
    assert codes(wrong, wrong, wrong) == ["numerical-mismatch"]
    assert codes(good, wrong, good) == ["order-dependent"]
    assert codes(good, good, wrong) == ["nondeterministic"]
    assert codes(good, good, almost) == ["nondeterministic"]
    assert codes(good, almost, good) == []  # another order of sums may change the last bits
    assert codes(poison("float32", 15), good, good) == ["unwritten-output"]
    infinite = encode(np.full_like(cases[0].expected[0], np.inf), "float32")
    assert codes(infinite, infinite, infinite) == ["nonfinite-output"]
    stale = [_run(cases[0], run) for run in range(3)] + [_run(cases[1], 0, good), ({"done": True}, b"")]
    assert _codes(_reply(stale), cases) == ["stale-result"]


def test_a_held_out_case_tells_nothing_but_the_fact() -> None:
    cases = _cases(held_out=True)
    messages = _honest(cases)
    messages[0] = _run(cases[0], 0, encode(cases[0].expected[0] * 2, "float32"))
    tally = evaluate(TASK, cases, _reply(messages))
    assert [reason.detail for reason in tally.reasons] == ["on a held-out shape"]
    assert "shape" not in tally.correctness[0]
    messages = _honest(cases)
    messages[0][0]["error"] = {"type": "ValueError", "message": "shape was (3, 5)", "line": 7}
    tally = evaluate(TASK, cases, _reply(messages[:1]))
    assert [(reason.detail, reason.where) for reason in tally.reasons] == [("on a held-out shape", "candidate.py:7")]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"ended": "timeout", "signal": 9}, "timeout"),
        ({"ended": "oversized", "signal": 9}, "protocol-violation"),
        ({"signal": 31}, "process-violation"),
        ({"signal": 25}, "output-flood"),
        ({"signal": 24}, "timeout"),
        ({"signal": 9}, "out-of-memory"),
        ({"signal": 11}, "runtime-error"),
        ({"exit": 31}, "sandbox-violation"),
        ({"exit": 32}, "process-violation"),
        ({"exit": 0}, "protocol-violation"),
        ({"output_bytes": 1 << 20}, "output-flood"),
    ],
)
def test_how_the_process_ended(status: Header, code: str) -> None:
    cases = _cases()
    assert _codes(_reply(_honest(cases)[:1], DONE | status), cases) == [code]


def test_damaged_replies_never_pass_and_never_crash() -> None:
    """Flip, cut and splice an honest reply; whatever comes out is a list of reasons, and not an empty one."""
    generator = random.Random(20)
    cases = _cases()
    honest = _reply(_honest(cases))
    wrong = _reply([_run(case, run, b"\1" * 60) for case in cases for run in range(len(case.orders))])
    for _ in range(300):
        data = bytearray(wrong if generator.random() < 0.5 else honest)
        if generator.random() < 0.5:
            data = data[: generator.randrange(len(data))]
        else:
            place = generator.randrange(len(data) - 8)
            data[place : place + 8] = struct.pack(">Q", generator.getrandbits(64))
        tally = evaluate(TASK, cases, bytes(data))
        json.dumps([reason.to_json() for reason in tally.reasons])
        if bytes(data[:200]) == honest[:200] and not tally.reasons:
            assert len(tally.correctness) == len(cases)  # the damage hit the lowest bits of a number
