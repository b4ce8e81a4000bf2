"""The judge on the record: one line per hash, and winners of an older judge judged again, for real."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlmodel import col, select

from flows import certify
from flows.certify import Recertified, note_health, recertify, record, recorded, self_test_size, stale_winners
from kernels.judge import Judge, judge_sha256
from kernels.library import STARTER_DIR
from kernels.self_test import CHEATS_DIR, Outcome
from review.queue import approve, check_merge
from workspace.errors import UserError
from workspace.lab import Lab
from workspace.tables import Candidate, Event, Night, Proposal, Verdict

OLD = "0" * 64


def _outcomes(failed: Sequence[str] = (), count: int | None = None) -> list[Outcome]:
    names = [f"cheat-{number}" for number in range(self_test_size() if count is None else count)]
    return [
        Outcome(name, ("race",), "accepted" if name in failed else "rejected", () if name in failed else ("race",), 0.1)
        for name in names
    ]


def test_a_self_test_counts_for_the_judge_that_passed_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recorded(lab) is None
    assert not record(lab, _outcomes(["cheat-3"]))
    assert recorded(lab) is False
    assert not record(lab, _outcomes(count=self_test_size() - 1)), "one that was cut short proves nothing"
    assert record(lab, _outcomes())
    assert recorded(lab) is True
    monkeypatch.setattr(certify, "judge_sha256", lambda: OLD)
    assert recorded(lab) is None, "another judge has not been tested"


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
