"""What a reviewer sees of a proposal: figures, evidence level, judge, diff stat, trailers, decisions. Reads only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement
from sqlmodel import Session, col, or_, select

from review.decisions import from_comparison
from review.facts import Decision, plain
from review.words import MINUS, microseconds
from workspace import tables
from workspace.errors import UserError

if TYPE_CHECKING:
    from workspace.lab import Lab

OPEN_STATES = ("awaiting_review", "approved", "changes_requested")
TRAILER = re.compile(r"([A-Z][A-Za-z]*(?:-[A-Za-z]+)+): (.+)")


@dataclass(frozen=True)
class Decided:
    """One decision of a person, and the commit or checkpoint it was about."""

    at: str
    reviewer: str
    decision: str
    head: str
    reason: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """One proposal in the queue. ``head`` is what its evidence is about; ``tip`` where its branch stands now."""

    id: int
    kind: str
    title: str
    hypothesis: str
    status: str
    target: str
    slot: str
    author: str
    level: str
    verdict: str
    judge: str
    candidate: str
    branch: str
    base: str
    head: str
    tip: str
    figures: str
    gain: float | None
    flags: Sequence[str] = ()
    diff_stat: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    trailers: Mapping[str, str] = field(default_factory=dict)
    reviews: Sequence[Decided] = ()
    decision: Decision | None = None
    merge_commit: str = ""
    checkpoint: str = ""

    @property
    def moved(self) -> bool:
        """The branch no longer stands where the evidence (or the approval) was taken."""
        return bool(self.branch) and self.tip != self.head

    def to_json(self) -> dict[str, Any]:
        """One element of `review list --json`, and the document of `review show --json`."""
        found: dict[str, Any] = plain(asdict(self))
        return {**found, "moved": self.moved}


def list_items(lab: Lab, *, everything: bool = False) -> list[Item]:
    """The queue: what waits for a person, successors before patches, the largest predicted gain first; or all."""
    with lab.ledger.read() as session:
        statement = select(tables.Proposal).order_by(col(tables.Proposal.id))
        if not everything:
            statement = statement.where(col(tables.Proposal.status).in_(OPEN_STATES))
        items = [_item(lab, session, row) for row in session.exec(statement)]
    order = {"awaiting_review": 0, "approved": 1, "changes_requested": 2}
    return sorted(items, key=lambda i: (order.get(i.status, 3), i.kind != "posttrain", -(i.gain or 0.0), i.id))


def show_item(lab: Lab, number: int) -> Item:
    """One proposal with its diff stat and trailers; UserError if there is none of that number."""
    with lab.ledger.read() as session:
        return _item(lab, session, find_proposal(session, number), git=True)


def find_proposal(session: Session, number: int) -> tables.Proposal:
    row = session.get(tables.Proposal, number)
    if row is None:
        known = session.exec(select(tables.Proposal.id).where(col(tables.Proposal.status).in_(OPEN_STATES))).all()
        allowed = ", ".join(str(k) for k in known) or "none: nothing waits for a review"
        raise UserError("there is no such proposal", field="ID", value=number, allowed=allowed)
    return row


def diff_of(lab: Lab, number: int) -> str:
    """The unified diff of a patch, from its base to where its branch stands; a successor's is its lineage in words."""
    item = show_item(lab, number)
    if item.branch and item.base and item.tip:
        return lab.git.diff(item.base, item.tip)
    if item.kind == "posttrain":
        raise UserError(
            "a successor has no diff",
            field="ID",
            value=number,
            remedy=f"see its figures: nightshift review show {number}",
        )
    raise UserError("this proposal has no branch", field="ID", value=number)


def _item(lab: Lab, session: Session, row: tables.Proposal, *, git: bool = False) -> Item:
    about: ColumnElement[bool] = col(tables.Verdict.proposal_id) == row.id
    if row.candidate_id is not None:
        about = or_(about, col(tables.Verdict.candidate_id) == row.candidate_id)
    verdict = session.exec(select(tables.Verdict).where(about).order_by(col(tables.Verdict.id).desc())).first()
    candidate = session.get(tables.Candidate, row.candidate_id) if row.candidate_id else None
    checkpoint = session.get(tables.Checkpoint, row.checkpoint_id) if row.checkpoint_id else None
    result = _kernel_result(session, row)
    decision = _decision(session, row, verdict)
    gain = None
    if result.get("incumbent_us") and result.get("predicted_us"):
        gain = 1.0 - float(result["predicted_us"]) / float(result["incumbent_us"])
    tip = (lab.git.branch_head(row.branch) or "") if row.branch else ""
    readable = git and bool(tip) and bool(row.base_commit)
    return Item(
        id=row.id or 0,
        kind=row.kind,
        title=row.title,
        hypothesis=row.hypothesis,
        status=row.status,
        target=row.target,
        slot=slot_of(row),
        author=row.author,
        level=row.level or "",
        verdict=verdict.decision if verdict else "",
        judge=str(result.get("judge") or (verdict.judge_sha256 if verdict else "")),
        candidate=candidate.sha256 if candidate else "",
        branch=row.branch or "",
        base=row.base_commit or "",
        head=row.head or "",
        tip=tip,
        figures=_figures(result, gain, decision),
        gain=gain,
        flags=tuple(row.flags),
        diff_stat=lab.git.diff_stat(row.base_commit or "", tip) if readable else {},
        trailers=parse_trailers(lab.git.message(tip)) if readable else {},
        reviews=_reviews(session, row.id or 0),
        decision=decision,
        merge_commit=row.merge_commit or "",
        checkpoint=checkpoint.name if checkpoint else "",
    )


def slot_of(row: tables.Proposal) -> str:
    """What it competes for: its cell, or (for every successor) to be the subject."""
    return "subject" if row.kind == "posttrain" else row.slot or row.target


def _kernel_result(session: Session, row: tables.Proposal) -> dict[str, Any]:
    if row.kind != "kernel" or row.candidate_id is None:
        return {}
    statement = select(tables.Experiment.result).where(
        tables.Experiment.kind == "kernel",
        tables.Experiment.status == "done",
        tables.Experiment.candidate_id == row.candidate_id,
    )
    return dict(session.exec(statement.order_by(col(tables.Experiment.id).desc())).first() or {})


def _decision(session: Session, row: tables.Proposal, verdict: tables.Verdict | None) -> Decision | None:
    if row.kind != "posttrain" or verdict is None:
        return None
    figures = verdict.figures
    if "claims" not in figures and verdict.experiment_id is not None:
        experiment = session.get(tables.Experiment, verdict.experiment_id)
        figures = experiment.result if experiment else {}
    return from_comparison(figures, verdict.decision) if "claims" in figures else None


def _figures(result: Mapping[str, Any], gain: float | None, decision: Decision | None) -> str:
    """The figures in one line."""
    if decision is not None:
        return f"{decision.verdict}: {decision.sentence}"
    if gain is None:
        return ""
    measured = result.get("measured")
    if measured:
        low, high = measured["ci95"]
        return f"measured ratio {measured['ratio']:.3f} (95% interval {low:.3f} to {high:.3f}) on {measured['device']}"
    sign = MINUS if gain > 0 else "+"
    return (
        f"{microseconds(result['predicted_us'])} against {microseconds(result['incumbent_us'])} "
        f"({sign}{abs(100 * gain):.0f}% time; prediction, unmeasured)"
    )


def _reviews(session: Session, number: int) -> tuple[Decided, ...]:
    rows = session.exec(
        select(tables.Review).where(tables.Review.proposal_id == number).order_by(col(tables.Review.id))
    )
    return tuple(
        Decided(f"{r.created_at:%Y-%m-%d %H:%M} UTC", r.reviewer, r.decision, r.head, r.reason, r.options) for r in rows
    )


def parse_trailers(message: str) -> dict[str, str]:
    """``Key-Name: value`` lines of the last paragraph of a commit message."""
    last = message.strip().split("\n\n")[-1]
    return {m.group(1): m.group(2).strip() for line in last.splitlines() if (m := TRAILER.fullmatch(line.strip()))}
