"""The decision that opens the report: what the gate said, in one sentence, or why it has not spoken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from review.facts import Check, Claim, Decision, GuardKind
from review.words import opening, percent, plural
from workspace import tables

STEP_NAMES = {
    "import": "the import of the model",
    "survey": "the survey",
    "propose": "the kernel campaign",
    "kernel": "the kernel campaign",
    "dataset": "building the data set",
    "posttrain": "post-training",
    "evaluate": "the evaluation of parent and successor",
    "judge": "the judgement",
}


def decide(
    night: tables.Night,
    status: str,
    step: str,
    experiments: Sequence[tables.Experiment],
    proposals: Sequence[tables.Proposal],
    verdicts: Sequence[tables.Verdict],
) -> Decision:
    """The night's decision about the successor. ``status`` is the report's word for the night (running, crashed, …)."""
    judged = [e for e in experiments if e.kind == "judge" and e.status == "done" and e.result.get("verdict")]
    if not judged:
        return Decision(
            headline="undecided",
            verdict=None,
            sentence=_why_undecided(night, status, step, experiments),
            next_step="The parent stays.",
        )
    experiment = judged[-1]
    spoken = [v for v in verdicts if v.experiment_id == experiment.id]
    proposal = next((p for p in proposals if p.id == experiment.proposal_id), None)
    if proposal is None:
        proposal = next((p for p in proposals if p.kind == "posttrain" and p.checkpoint_id is not None), None)
    decision = from_comparison(experiment.result, spoken[-1].decision if spoken else None)
    return _with_next_step(decision, proposal)


def from_comparison(document: Mapping[str, Any], verdict: str | None = None) -> Decision:
    """A decision out of the `eval compare --json` document; ``verdict`` (a ledger row) wins over the document's own."""
    word = verdict or str(document["verdict"])
    draft = Decision(
        headline="promote" if word == "promote" else "hold",
        verdict=word,
        sentence="",
        next_step="",
        parent=str(document.get("parent", "")),
        successor=str(document.get("successor", "")),
        alpha=float(document.get("alpha", 0.05)),
        claims=tuple(_claim(c) for c in document.get("claims", ())),
        integrity=tuple(
            Check(str(c["check"]), bool(c["passed"]), str(c.get("detail", ""))) for c in document.get("integrity", ())
        ),
        kinds=tuple(_kind(k) for k in document.get("guard_kinds", ())),
        would_have_taken=() if word == "promote" else tuple(str(line) for line in document.get("explanation", ())),
    )
    return _replace(draft, sentence=opening(draft))


def _claim(row: Mapping[str, Any]) -> Claim:
    interval = row.get("ci95")
    return Claim(
        eval=str(row["eval"]),
        role="target" if row["role"] == "target" else "guard",
        n=int(row["n"]),
        parent=float(row["parent"]),
        successor=float(row["successor"]),
        difference=float(row["difference"]),
        ci95=(float(interval[0]), float(interval[1])) if interval else None,
        test=str(row.get("test", "")),
        p=_number(row.get("p")),
        p_holm=_number(row.get("p_holm")),
        margin=_number(row.get("margin")),
        power=_number(row.get("power")),
        outcome=str(row["outcome"]),
        gained=row.get("gained"),
        lost=row.get("lost"),
    )


def _kind(row: Mapping[str, Any]) -> GuardKind:
    return GuardKind(
        kind=str(row["kind"]),
        n=int(row["n"]),
        parent=float(row["parent"]),
        successor=float(row["successor"]),
        counts=bool(row["counts"]),
        worse=bool(row["worse"]),
        reason=str(row["reason"]).removeprefix("does not count: "),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _replace(decision: Decision, **changes: Any) -> Decision:
    from dataclasses import replace

    return replace(decision, **changes)


def _with_next_step(decision: Decision, proposal: tables.Proposal | None) -> Decision:
    if proposal is None:
        return _replace(decision, next_step="The parent stays.")
    number = str(proposal.id)
    steps = {
        "awaiting_review": f"Look at it: nightshift review show {number}",
        "approved": f"Approved; put it into effect: nightshift review merge {number}",
        "merged": "Merged: the successor is the model of the next night.",
        "changes_requested": "Changes were requested; the parent stays.",
        "rejected": "A reviewer rejected it; the parent stays.",
        "superseded": "Superseded by another proposal; the parent stays.",
    }
    if decision.verdict != "promote" and proposal.status == "awaiting_review":
        steps["awaiting_review"] = f"The parent stays. The evidence: nightshift review show {number}"
    return _replace(decision, proposal_id=number, next_step=steps.get(proposal.status, "The parent stays."))


def _why_undecided(night: tables.Night, status: str, step: str, experiments: Sequence[tables.Experiment]) -> str:
    """One plain sentence: what kept the gate from speaking."""
    broken = [e for e in experiments if e.kind != "kernel" and e.status in ("failed", "timed_out", "killed", "lost")]
    if status == "running":
        return f"The night is still running ({STEP_NAMES.get(step, step or 'starting')}); nothing is decided yet."
    if status == "crashed":
        where = STEP_NAMES.get(step, step or "the start")
        return f"The night stopped during {where} without an end; the next start takes it up there."
    if broken:
        first = broken[0]
        reason = (first.error or "").strip().splitlines()
        what = STEP_NAMES.get(first.kind, first.kind)
        return (
            f"No successor was judged: {what} {first.status.replace('_', ' ')} after "
            f"{plural(max(first.attempts, 1), 'attempt')}{': ' + reason[-1] if reason else ''}."
        )
    if night.only and "posttrain" not in night.only:
        return f"No successor was asked for: this night ran only {', '.join(night.only)}."
    if status == "budget":
        return "The budget ended before a successor could be judged."
    if status == "interrupted":
        return "The night was interrupted before a successor could be judged; the next start resumes it."
    return _no_weakness(experiments)


def _no_weakness(experiments: Sequence[tables.Experiment]) -> str:
    survey = next((e for e in experiments if e.kind == "survey" and e.status == "done"), None)
    rows = survey.result.get("rows", []) if survey else []
    if rows and not any(r.get("chosen") for r in rows):
        best = min(rows, key=lambda r: float(r["strict"]))
        return (
            f"No family qualified as a weakness ({plural(len(rows), 'family', 'families')} surveyed, the lowest "
            f"{best['family']} at {percent(float(best['strict']))}), so nothing was trained."
        )
    return "No successor was judged tonight."
