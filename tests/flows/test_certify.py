"""The judge on the record: one line per hash, and winners of an older judge judged again, for real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlmodel import col, select

from flows import certify
from flows.certify import Recertified, fallen_cheats, note_health, recertify, record, recorded, stale_winners
from kernels.judge import Judge, judge_sha256
from kernels.library import STARTER_DIR
from kernels.self_test import CHEATS_DIR, Outcome, trials
from review.queue import approve, check_merge
from workspace.errors import UserError
from workspace.lab import Lab
from workspace.tables import Candidate, Event, Night, Proposal, Verdict

OLD = "0" * 64


def _outcomes(failed: str = "", without: str = "") -> list[Outcome]:
    """Every trial as if it had been a cheat with one mechanism: rejected for it, or accepted."""
    good = Outcome("", ("race",), "rejected", ("race",), 0.1)
    bad = Outcome("", ("race",), "accepted", (), 0.1)
    names = [trial.name for trial in trials() if trial.name != without]
    return [replace(bad if name == failed else good, name=name) for name in names]


def test_a_self_test_counts_for_the_judge_that_passed_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorded(lab) is None
    assert not record(lab, _outcomes(failed="zeros"))
    assert recorded(lab) is False
    assert not record(lab, _outcomes(without="zeros")), "one that was cut short proves nothing"
    assert record(lab, _outcomes(without="endless_kernel")), "what can only wait can win nothing"
    assert recorded(lab) is True
    assert record(lab, _outcomes(failed="fork_bomb"), quick=True) is False
    assert (recorded(lab), recorded(lab, quick=True)) == (True, False), "a quick one says nothing about the whole"
    monkeypatch.setattr(certify, "judge_sha256", lambda: OLD)
    assert recorded(lab) is None, "another judge has not been tested"


def test_a_night_believes_a_judge_that_passed_and_goes_on_where_it_was(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [trial for trial in trials() if trial.name in ("zeros", "inline_assembly", "honest softmax")]
    broken = replace(few[0], name="zeros that pass", expected=("race",))
    stored: dict[str, dict[str, Any]] = {}

    def once(key: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if key not in stored:
            stored[key] = work()
        return stored[key]

    with Judge(b"secret", None, compile_candidates=False) as judge:
        monkeypatch.setattr(certify, "trials", lambda: [*few, broken])
        assert fallen_cheats(lab, judge, once, lambda _done, _total: None) == ["zeros that pass"]
        assert recorded(lab) is False
        asked = judge.room.asked
        monkeypatch.setattr(certify, "trials", lambda: few)
        assert fallen_cheats(lab, judge, once, lambda _done, _total: None) == []
        assert judge.room.asked == asked, "what was judged before is read back"
        assert recorded(lab) is True
        assert fallen_cheats(lab, judge, _never, lambda _done, _total: None) == []


def _never(_key: str, _work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    raise AssertionError("a judge that has passed is not tested again")


def _winner(lab: Lab, task: str, source: str, status: str) -> int:
    """A kernel proposal that an older judge accepted."""
    sha256 = lab.artifacts.put_bytes(source.encode(), "kernel-source")
    with lab.ledger.write() as session:
        night = session.exec(select(Night)).first()
        if night is None:
            night = Night(profile="smoke", only=[], seed="1", base_commit=lab.git.head(), settings_sha256=OLD,
                          budget_wall_s=1.0)  # fmt: skip
            session.add(night)
            session.flush()
        candidate = Candidate(night_id=night.id, task=task, sha256=sha256, move={})
        session.add(candidate)
        session.flush()
        proposal = Proposal(
            night_id=night.id, kind="kernel", target=task, slot=f"{task}/sm_90/128/{sha256[:4]}", title=task,
            hypothesis="", plan={}, author="m0", status=status, level="compiled", base_commit=lab.git.head(),
            candidate_id=candidate.id,
        )  # fmt: skip
        session.add(proposal)
        session.add(
            Verdict(night_id=night.id, candidate_id=candidate.id, decision="accepted", level="compiled",
                    judge_sha256=OLD)
        )  # fmt: skip
        session.flush()
        assert proposal.id is not None
        return proposal.id


def test_winners_of_another_judge_are_judged_again(lab: Lab) -> None:
    honest = _winner(lab, "softmax", (STARTER_DIR / "softmax" / "kernel.py").read_text(), "merged")
    cheat = next(path for path in sorted(CHEATS_DIR.glob("*.py")) if "# expect: out-of-bounds-read" in path.read_text())
    task = next(line for line in cheat.read_text().splitlines() if line.startswith("# task: ")).removeprefix("# task: ")
    fallen = _winner(lab, task, cheat.read_text(), "awaiting_review")
    rejected = _winner(lab, "softmax", "# nobody won with this\n", "rejected")
    assert [proposal.id for proposal, _, _ in stale_winners(lab)] == [honest, fallen]

    with Judge(b"secret", None, compile_candidates=False) as judge:
        found = list(recertify(lab, judge))
        note_health(lab, judge)
    assert found == [
        Recertified(honest, "softmax", "merged", "accepted", "accepted", []),
        Recertified(fallen, task, "awaiting_review", "accepted", "rejected", ["out-of-bounds-read"]),
    ]
    assert stale_winners(lab) == []
    with lab.ledger.read() as session:
        (health,) = session.exec(select(Event.data).where(Event.kind == "sandbox")).all()
        assert health == {"opened": 1, "asked": 2, "disposals": {}}
        verdicts = session.exec(select(Verdict).order_by(col(Verdict.id))).all()
        assert [row.decision for row in verdicts] == ["accepted"] * 3 + ["accepted", "rejected"]
        assert [row.supersedes_id for row in verdicts[3:]] == [verdicts[0].id, verdicts[1].id]
        assert {row.judge_sha256 for row in verdicts[3:]} == {judge_sha256()}
        flags = {row.id: row.flags for row in session.exec(select(Proposal)).all()}
    assert flags == {honest: [], fallen: ["recertification: out-of-bounds-read"], rejected: []}
    for decide in (approve, check_merge):
        with pytest.raises(UserError):
            decide(lab, fallen)
    with pytest.raises(UserError, match="rejects this candidate"):
        approve(lab, fallen)
