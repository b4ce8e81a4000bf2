"""The judge on the record: its own test before a night believes it, and winners judged again when it has changed.

A judge is known by the hash that is part of every verdict.  Its test is written down once per hash; a night whose judge
has no such line runs it first, and takes no kernel while a cheat gets through.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import col, select

from kernels.judge import Judge, judge_sha256
from kernels.library import load_tasks
from kernels.self_test import Outcome, Trial, run_trial, trials
from workspace.lab import Lab
from workspace.tables import Candidate, Event, Proposal, Verdict

KIND = "self-test"
Once = Callable[[str, Callable[[], dict[str, Any]]], dict[str, Any]]
WINNING = ("awaiting_review", "approved", "merged")


def recorded(lab: Lab, *, quick: bool = False) -> bool | None:
    """What the last self-test of the installed judge said in this lab; None when there was none.

    ``quick`` also takes the word of one that left the hostile candidates out.
    """
    with lab.ledger.read() as session:
        rows = session.exec(select(Event).where(Event.kind == KIND).order_by(col(Event.id).desc())).all()
    mine = [row.data for row in rows if row.data.get("judge") == judge_sha256()]
    return next((bool(data["passed"]) for data in mine if quick or not data.get("quick")), None)


def wanted_trials(*, quick: bool = False) -> list[Trial]:
    """What a night runs: endless candidates are left out, which cost their deadline and cannot win by it.

    ``quick`` leaves out those as well after which a sandbox is thrown away.
    """
    return [trial for trial in trials() if not trial.waits and not (quick and trial.disposes)]


def record(lab: Lab, outcomes: Sequence[Outcome], night_id: int | None = None, *, quick: bool = False) -> bool:
    """Write a finished self-test down; true when nothing got through and nothing was left out that could."""
    failed = [outcome.name for outcome in outcomes if not outcome.passed]
    needed = {trial.name for trial in wanted_trials(quick=quick)}
    passed = not failed and needed <= {outcome.name for outcome in outcomes}
    said = f"{len(outcomes) - len(failed)} of {len(outcomes)} as they should be"
    lab.ledger.log(KIND, said, night_id=night_id, judge=judge_sha256(), passed=passed, failed=failed, quick=quick)
    return passed


def note_health(lab: Lab, judge: Judge, night_id: int | None = None) -> None:
    """How the judge's warm sandboxes fared, as an event; the one that is open now is counted as it is."""
    health = judge.room.health()
    lab.ledger.log(
        "sandbox", f"{health['asked']} candidates in {health['opened']} warm sandboxes", night_id=night_id, **health
    )


def fallen_cheats(
    lab: Lab, judge: Judge, once: Once, on_progress: Callable[[int, int], None], night_id: int | None = None, *,
    quick: bool = False,
) -> list[str]:  # fmt: skip
    """Names of what gets through the installed judge; empty when it may be believed.

    Runs what no self-test of this judge has run in this lab yet, each candidate through ``once(key, work)``, so that a
    killed night goes on in the middle.
    """
    if recorded(lab, quick=quick):
        return []
    wanted = wanted_trials(quick=quick)
    outcomes: list[Outcome] = []
    for trial in wanted:
        work = functools.partial(_judged, judge, trial)
        outcomes.append(Outcome.from_json(once(f"{judge_sha256()[:12]}/{trial.name}", work)))
        on_progress(len(outcomes), len(wanted))
    record(lab, outcomes, night_id, quick=quick)
    return [outcome.name for outcome in outcomes if not outcome.passed]


def _judged(judge: Judge, trial: Trial) -> dict[str, Any]:
    return run_trial(judge, trial).to_json()


@dataclass(frozen=True)
class Recertified:
    """A winner under the judge that is installed now. ``was`` is the decision of the verdict it supersedes."""

    proposal_id: int
    task: str
    status: str
    was: str
    decision: str
    codes: list[str]

    def to_json(self) -> dict[str, Any]:
        """A row of ``kernel self-test --recertify --json``."""
        return {
            "proposal": self.proposal_id, "task": self.task, "status": self.status, "was": self.was,
            "verdict": self.decision, "codes": self.codes,
        }  # fmt: skip


def stale_winners(lab: Lab) -> list[tuple[Proposal, Candidate, Verdict | None]]:
    """Kernel patches that wait, are approved or merged, and whose last verdict is another judge's."""
    found: list[tuple[Proposal, Candidate, Verdict | None]] = []
    with lab.ledger.read() as session:
        rows = session.exec(
            select(Proposal, Candidate)
            .where(Proposal.candidate_id == Candidate.id, Proposal.kind == "kernel")
            .where(col(Proposal.status).in_(WINNING))
            .order_by(col(Proposal.id))
        ).all()
        for proposal, candidate in rows:
            last = session.exec(
                select(Verdict).where(Verdict.candidate_id == candidate.id).order_by(col(Verdict.id).desc())
            ).first()
            if last is None or last.judge_sha256 != judge_sha256():
                found.append((proposal, candidate, last))
    return found


def recertify(lab: Lab, judge: Judge) -> Iterator[Recertified]:
    """Judge every stale winner again; each verdict is a new row that names the one it supersedes.

    A winner that falls is flagged on its proposal; what is merged stays merged until a person takes it back.
    """
    tasks = load_tasks(lab.root / "kernels")
    for proposal, candidate, last in stale_winners(lab):
        task = tasks.get(candidate.task)
        if task is None:
            yield Recertified(
                proposal.id or 0, candidate.task, proposal.status, last.decision if last else "", "error",
                ["the task is not in the lab any more"],
            )  # fmt: skip
            continue
        result = judge.check(task, lab.artifacts.get_bytes(candidate.sha256).decode())
        codes = sorted({reason.code for reason in result.reasons})
        if result.verdict != "error":  # a judge that could not decide has said nothing
            _store(
                lab, proposal, candidate, last, result.verdict, result.level, {"reasons": codes, "recertified": True}
            )
        was = last.decision if last else ""
        yield Recertified(proposal.id or 0, candidate.task, proposal.status, was, result.verdict, codes)


def _store(
    lab: Lab, proposal: Proposal, candidate: Candidate, last: Verdict | None, decision: str, level: str | None,
    figures: dict[str, Any],
) -> None:  # fmt: skip
    with lab.ledger.write() as session:
        session.add(
            Verdict(
                candidate_id=candidate.id, decision=decision, level=level, judge_sha256=judge_sha256(),
                figures=figures, supersedes_id=last.id if last else None,
            )
        )  # fmt: skip
        row = session.get_one(Proposal, proposal.id)
        flag = f"recertification: {', '.join(figures['reasons'])}"
        if decision != "accepted" and flag not in row.flags:
            row.flags = [*row.flags, flag]
        session.add(row)
