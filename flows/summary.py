"""The document of ``night --json``, read from the ledger at the end of a night."""

from __future__ import annotations

from typing import Any

from sqlmodel import col, select

from flows.context import NightRun
from workspace.tables import Candidate, Checkpoint, Dataset, Experiment, Proposal, Verdict


def summarise(run: NightRun, status: str) -> dict[str, Any]:
    """What the night found and spent. ``reviews`` are the proposals that wait for a person."""
    with run.lab.ledger.read() as session:
        proposals = session.exec(select(Proposal).where(Proposal.night_id == run.id).order_by(col(Proposal.id))).all()
        verdicts = session.exec(select(Verdict).where(Verdict.night_id == run.id).order_by(col(Verdict.id))).all()
        candidates = {row.id: row for row in session.exec(select(Candidate).where(Candidate.night_id == run.id)).all()}
        datasets = session.exec(select(Dataset).where(Dataset.night_id == run.id)).all()
        models = session.exec(select(Checkpoint).where(Checkpoint.night_id == run.id)).all()
        judged = session.exec(
            select(Experiment).where(
                Experiment.night_id == run.id, Experiment.kind == "judge", Experiment.status == "done"
            )
        ).all()
    decision = judged[-1].result.get("verdict") if judged else None
    return {
        "night": run.id,
        "status": status,
        "profile": run.night.profile,
        "decision": decision,
        "kernels": [
            {
                "task": candidates[row.candidate_id].task,
                "candidate": f"sha256:{candidates[row.candidate_id].sha256}",
                "verdict": row.decision,
                "level": row.level,
                "reasons": [reason["code"] for reason in row.figures.get("reasons", [])],
                "predicted_ratio": row.figures.get("ratio"),
            }
            for row in verdicts
            if row.candidate_id in candidates
        ],
        "datasets": [
            {"id": row.id, "name": row.name, "target": row.target, "rows": row.rows, **row.figures} for row in datasets
        ],
        "checkpoints": [
            {"name": row.name, "sha256": f"sha256:{row.sha256}", "verdict": decision, **row.figures} for row in models
        ],
        "reviews": [
            {"id": row.id, "kind": row.kind, "target": row.target, "title": row.title, "level": row.level}
            for row in proposals
            if row.status == "awaiting_review"
        ],
        "spend": {
            "tokens": 0, "usd": 0.0, "accelerator_s": 0.0,
            **{name: round(line.spent, 3) for name, line in run.budget.lines(run.scope).items()},
        },
        "flags": run.flags(),
        "resumed": sorted(set(run.resumed)),
    }  # fmt: skip
