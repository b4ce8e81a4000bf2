"""Collects one night's facts from the ledger into a `Report`.

Works for any night: finished, still running, or crashed. Reads only, in one transaction, so that all figures belong
together. Not covered: anything that is not in the ledger (Prefect's own records, logs of processes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlmodel import Session, col, select

from review.decisions import decide
from review.facts import (
    CandidatePoint,
    Cell,
    Patch,
    Report,
    Resource,
    Spend,
    SurveyLine,
    Tonight,
    Training,
)
from review.flags import BELOW_MEASURED, find_flags, find_incidents
from review.words import plural, short
from workspace import process, tables
from workspace.errors import UserError

if TYPE_CHECKING:
    from workspace.lab import Lab

QUEUE_OPEN = ("awaiting_review", "approved", "changes_requested")
RESOURCES: tuple[Resource, ...] = ("tokens", "usd", "wall_s", "accelerator_s")
STALE_AFTER_S = 180.0
HELD = ("leased", "running")


@dataclass(frozen=True)
class _Rows:
    """Everything of one night that the report reads, in one consistent snapshot."""

    night: tables.Night
    experiments: list[tables.Experiment]
    verdicts: list[tables.Verdict]
    events: list[tables.Event]
    lines: list[tables.BudgetLine]
    proposals: list[tables.Proposal]
    candidates: dict[int, tables.Candidate]
    kernel_results: dict[int, dict[str, Any]]
    promotions: list[tables.Promotion]
    checkpoints: dict[int, str]
    projects: list[tables.Project]


def collect_report(lab: Lab, night_id: int | None = None, *, at: datetime | None = None) -> Report:
    """The report of ``night_id`` (default: the newest night). ``at`` is "now" (UTC), for tests.

    Raises UserError where there is no such night.
    """
    moment = at or tables.now()
    with lab.ledger.read() as session:
        rows = _read(session, _find_night(session, night_id))
    night = rows.night
    status, step = _status(rows, moment)
    own = [p for p in rows.proposals if p.night_id == night.id]
    decision = decide(night, status, step, rows.experiments, own, rows.verdicts)
    patches = _patches(rows)
    merged_unmeasured = [
        p for p in rows.proposals if p.kind == "kernel" and p.status == "merged" and p.level in BELOW_MEASURED
    ]
    flags = find_flags(
        decision,
        patches,
        [p for p in rows.promotions if p.override],
        rows.checkpoints,
        merged_unmeasured,
        rows.experiments,
        [e.message for e in rows.events if e.kind == "flag"],
    )
    return Report(
        lab=lab.root.name,
        night=str(night.id),
        status=status,
        started_at=night.started_at,
        ended_at=night.ended_at,
        profile=night.profile,
        current_step=step if status in ("running", "crashed") else "",
        decision=decision,
        patches=patches,
        cells=_cells(rows.experiments),
        spend=_spend(rows, moment),
        flags=flags,
        incidents=find_incidents(night, rows.experiments, rows.events),
        tonight=_tonight(lab, rows, moment),
        survey=_survey(rows.experiments),
        training=_training(rows.experiments),
        took_s=_took(rows),
        provenance=_provenance(rows),
    )


def nights(lab: Lab) -> list[tables.Night]:
    """All nights, the newest first."""
    with lab.ledger.read() as session:
        return list(session.exec(select(tables.Night).order_by(col(tables.Night.id).desc())))


def _find_night(session: Session, night_id: int | None) -> tables.Night:
    if night_id is None:
        newest = session.exec(select(tables.Night).order_by(col(tables.Night.id).desc()).limit(1)).first()
        if newest is None:
            raise UserError("this lab has had no night yet", remedy="run one: nightshift night")
        return newest
    night = session.get(tables.Night, night_id)
    if night is None:
        known = session.exec(select(tables.Night.id).order_by(col(tables.Night.id).desc()).limit(5)).all()
        allowed = ", ".join(str(k) for k in known) or "none yet (run: nightshift night)"
        raise UserError("there is no such night", field="NIGHT", value=night_id, allowed=allowed)
    return night


def _read(session: Session, night: tables.Night) -> _Rows:
    def of_night(table: Any) -> list[Any]:
        return list(session.exec(select(table).where(table.night_id == night.id).order_by(table.id)))

    proposals = session.exec(select(tables.Proposal).order_by(col(tables.Proposal.id))).all()
    ids = [p.candidate_id for p in proposals if p.candidate_id is not None]
    candidates = session.exec(select(tables.Candidate).where(col(tables.Candidate.id).in_(ids))).all()
    results = session.exec(
        select(tables.Experiment).where(
            tables.Experiment.kind == "kernel",
            tables.Experiment.status == "done",
            col(tables.Experiment.candidate_id).in_(ids),
        )
    ).all()
    return _Rows(
        night=night,
        experiments=of_night(tables.Experiment),
        verdicts=of_night(tables.Verdict),
        events=of_night(tables.Event),
        lines=list(session.exec(select(tables.BudgetLine).where(tables.BudgetLine.scope == f"night:{night.id}"))),
        proposals=[p for p in proposals if p.night_id is None or p.night_id <= (night.id or 0)],
        candidates={c.id: c for c in candidates if c.id is not None},
        kernel_results={e.candidate_id: e.result for e in results if e.candidate_id is not None},
        promotions=list(session.exec(select(tables.Promotion).order_by(col(tables.Promotion.id)))),
        checkpoints={c.id: c.name for c in session.exec(select(tables.Checkpoint)) if c.id is not None},
        projects=list(session.exec(select(tables.Project).order_by(col(tables.Project.id)))),
    )


def night_status(lab: Lab, night: tables.Night) -> str:
    """The night's status in the report's words: its row's, but "crashed" for one that runs no more without an end."""
    if night.status != "running":
        return night.status
    with lab.ledger.read() as session:
        own = select(tables.Experiment).where(tables.Experiment.night_id == night.id)
        experiments = list(session.exec(own))
        events = list(session.exec(select(tables.Event).where(tables.Event.night_id == night.id)))
        return "running" if _is_alive(night, experiments, events, tables.now()) else "crashed"


def _status(rows: _Rows, moment: datetime) -> tuple[str, str]:
    """(the night's status in the report's words, the step it is or was in)."""
    open_steps = [e.kind for e in rows.experiments if e.status in HELD]
    done_steps = [e.kind for e in rows.experiments if e.status == "done"]
    step = (open_steps or done_steps or [""])[-1]
    if rows.night.status != "running":
        return rows.night.status, step
    return ("running" if _is_alive(rows.night, rows.experiments, rows.events, moment) else "crashed"), step


def _is_alive(
    night: tables.Night, experiments: Sequence[tables.Experiment], events: Sequence[tables.Event], moment: datetime
) -> bool:
    """Whether a night whose row says "running" really does.

    The holder of its open step lives; or, between two steps, something was heard of it within the last minutes.
    """
    owners = [e.owner for e in experiments if e.status in HELD and e.owner]
    if owners:
        return any(process.is_alive(owner) for owner in owners)
    signs = [night.started_at, *(e.at for e in events)]
    for e in experiments:
        signs += [t for t in (e.heartbeat_at, e.started_at, e.ended_at) if t is not None]
    return (moment - max(signs)).total_seconds() <= STALE_AFTER_S


def _patches(rows: _Rows) -> list[Patch]:
    """Kernel patches that wait for a person (any night so far) and tonight's, the largest predicted gain first."""
    chosen = [
        p
        for p in rows.proposals
        if p.kind == "kernel"
        and (
            p.status in QUEUE_OPEN or (p.night_id == rows.night.id and p.status in ("merged", "rejected", "superseded"))
        )
    ]
    found = [_patch(p, rows.kernel_results.get(p.candidate_id or -1, {})) for p in chosen]
    return sorted(found, key=lambda p: (p.status not in QUEUE_OPEN, -(p.gain or 0.0)))


def _patch(proposal: tables.Proposal, result: dict[str, Any]) -> Patch:
    measured = result.get("measured") or {}
    return Patch(
        proposal_id=str(proposal.id),
        title=proposal.title,
        status=proposal.status,
        cell=proposal.slot or proposal.target,
        branch=proposal.branch or "",
        commit=proposal.head or "",
        level=proposal.level or str(result.get("level") or ""),
        incumbent_us=_number(result.get("incumbent_us")),
        predicted_us=_number(result.get("predicted_us")),
        judge=str(result.get("judge") or ""),
        measured_ratio=_number(measured.get("ratio")),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _cells(experiments: Sequence[tables.Experiment]) -> list[Cell]:
    """Candidates grouped by (task, target, size), in the order in which the night worked on them."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for e in experiments:
        if e.kind == "kernel" and e.status == "done" and e.result.get("cell"):
            target, size = e.result["cell"]
            groups.setdefault((str(e.result.get("task", e.key.split("/")[0])), str(target), int(size)), []).append(
                e.result
            )
    return [_cell(task, target, size, results) for (task, target, size), results in groups.items()]


def _cell(task: str, target: str, size: int, results: Sequence[dict[str, Any]]) -> Cell:
    floors = [r.get("floor_us") for r in results]
    return Cell(
        task=task,
        target=target,
        size=size,
        incumbent_us=_number(next((r["incumbent_us"] for r in results if r.get("incumbent_us")), None)),
        floor_us=_number(next((f for f in floors if f is not None), None)),
        candidates=tuple(_point(r) for r in results),
    )


def _point(result: dict[str, Any]) -> CandidatePoint:
    reasons = result.get("reasons") or [{}]
    schedule = result.get("schedule") or {}
    return CandidatePoint(
        name=str(result.get("candidate", "")).removeprefix("sha256:")[:12],
        schedule=", ".join(f"{k} {v}" for k, v in schedule.items() if k != "source"),
        verdict=str(result.get("verdict", "")),
        level=str(result.get("level") or ""),
        predicted_us=_number(result.get("predicted_us")),
        reason=str(reasons[0].get("code", "")),
    )


def _spend(rows: _Rows, moment: datetime) -> list[Spend]:
    lines = {line.resource: line for line in rows.lines}
    told = rows.night.summary.get("spend", {})
    ran_s = ((rows.night.ended_at or moment) - rows.night.started_at).total_seconds()
    found = []
    for name in RESOURCES:
        line = lines.get(name)
        used = float(told[name]) if name in told else line.spent if line else ran_s if name == "wall_s" else 0.0
        cap = line.cap if line else rows.night.budget_wall_s if name == "wall_s" else None
        found.append(Spend(name, used, cap))
    return found


def _tonight(lab: Lab, rows: _Rows, moment: datetime) -> Tonight:
    """The next run of the schedule and what it will take up, persons' projects first."""
    waiting = [p for p in rows.projects if p.status in ("open", "active")]
    waiting.sort(key=lambda p: (p.origin != "person", p.id or 0))
    queue = [
        f"{p.title} ({p.kind}, {p.owner})" if p.origin == "person" else f"{p.title} ({p.kind}, the model's own idea)"
        for p in waiting
    ]
    model = rows.checkpoints.get(rows.promotions[-1].checkpoint_id, "") if rows.promotions else ""
    unmeasured = [
        p
        for p in rows.proposals
        if p.kind == "kernel" and p.level in BELOW_MEASURED and p.status in (*QUEUE_OPEN, "merged")
    ]
    count = len(unmeasured)
    note = f"{plural(count, 'patch', 'patches')} wait{'s' if count == 1 else ''} for a GPU worker." if count else ""
    cron, zone = schedule_of(lab)
    return Tonight(cron=cron, next_run=next_run(cron, moment, zone), queue=queue, model=model, note=note)


def schedule_of(lab: Lab) -> tuple[str, str]:
    """Cron line and time zone of the lab's settings."""
    return lab.settings.schedule.cron, lab.settings.schedule.timezone


def next_run(cron: str, after: datetime, zone: str = "UTC") -> datetime | None:
    """The first time (UTC) after ``after`` that a five-field cron line matches in ``zone``; None for a wrong one."""
    from zoneinfo import ZoneInfo

    from cronsim import CronSim, CronSimError

    try:
        found: datetime = next(CronSim(cron, after.astimezone(ZoneInfo(zone))))
    except (CronSimError, StopIteration, KeyError, ValueError):
        return None
    return found.astimezone(UTC)


def _survey(experiments: Sequence[tables.Experiment]) -> list[SurveyLine]:
    done = next((e for e in experiments if e.kind == "survey" and e.status == "done"), None)
    rows = done.result.get("rows", []) if done else []
    return [
        SurveyLine(
            family=str(r["family"]),
            n=int(r["n"]),
            strict=float(r["strict"]),
            stderr=float(r["stderr"]),
            lenient=_number(r.get("lenient")),
            distinct_items=_number(r.get("distinct_items")),
            chosen=bool(r.get("chosen")),
            reason=str(r.get("reason") or ""),
        )
        for r in rows
    ]


def _training(experiments: Sequence[tables.Experiment]) -> Training:
    results = {e.kind: e.result for e in experiments if e.status == "done"}
    data, run = results.get("dataset", {}), results.get("posttrain", {})
    return Training(
        dataset_id=str(data.get("dataset_id", "")),
        rows=int(data.get("rows", 0)),
        shares={str(k): float(v) for k, v in (data.get("shares") or {}).items()},
        refused={str(k): int(v) for k, v in (data.get("refused") or {}).items()},
        steps=int(run.get("steps", 0)),
        wall_s=float(run.get("wall_s", 0.0)),
        tokens_per_s=_number(run.get("tokens_per_s")),
        loss_curve=tuple(tuple(float(x) for x in row) for row in run.get("loss_curve") or ()),
    )


def _took(rows: _Rows) -> dict[str, float]:
    """Seconds per step: the night's own figures, or the span of its experiments while it has not ended."""
    told = rows.night.summary.get("took_s")
    if told:
        return {str(k): float(v) for k, v in told.items()}
    took: dict[str, float] = {}
    for e in rows.experiments:
        if e.started_at and e.ended_at:
            took[e.kind] = took.get(e.kind, 0.0) + (e.ended_at - e.started_at).total_seconds()
    return took


def _provenance(rows: _Rows) -> dict[str, str]:
    night = rows.night
    judges = sorted({v.judge_sha256 for v in rows.verdicts if v.candidate_id is not None})
    gates = sorted({v.judge_sha256 for v in rows.verdicts if v.candidate_id is None})
    facts = {
        "subject": rows.checkpoints.get(night.subject_id or -1, ""),
        "base commit": night.base_commit[:12],
        "settings": night.settings_sha256.removeprefix("sha256:")[:12],
        "kernel judge": ", ".join(short(j) for j in judges),
        "gate": ", ".join(short(g) for g in gates),
        **{str(k): _brief(v) for k, v in night.fingerprint.items()},
    }
    return {k: v for k, v in facts.items() if v}


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in list(value.items())[:12])
    return ", ".join(str(v) for v in value) if isinstance(value, list) else str(value)
