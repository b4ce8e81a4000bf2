"""Is the ledger whole? Integrity of the database, files that rows rely on, lineage, leases of the dead.

Every check returns findings and changes nothing.  A ``fault`` is something that an invariant forbids; a ``note`` is
harmless (a file without its row is what ``kill -9`` between the two leaves behind).  Not covered: whether the content
of a checkpoint or an artifact still has its hash, unless ``deep`` is asked for, because that reads every byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import func, text
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session, col, select

from workspace import process
from workspace.experiments import STALE_AFTER_S
from workspace.files import sha256_file
from workspace.ledger import Ledger
from workspace.tables import (
    METADATA,
    Artifact,
    Candidate,
    Checkpoint,
    Dataset,
    EvalRun,
    Experiment,
    Measurement,
    ModelCall,
    Night,
    Project,
    Promotion,
    Proposal,
    Reservation,
    Review,
    now,
)

# (table, column) of every sha256 that names an artifact.
ARTIFACT_COLUMNS: tuple[tuple[Any, str], ...] = (
    (Candidate, "sha256"),
    (Dataset, "parquet_sha256"),
    (Dataset, "manifest_sha256"),
    (Dataset, "recipe_sha256"),
    (Checkpoint, "recipe_sha256"),
    (EvalRun, "rows_sha256"),
    (Measurement, "samples_sha256"),
    (ModelCall, "request_sha256"),
    (ModelCall, "reply_sha256"),
    (Project, "eval_sha256"),
)


@dataclass(frozen=True)
class LedgerFinding:
    """``row`` says where, e.g. ``dataset 3``; ``code`` is one word for programs."""

    code: str
    detail: str
    row: str = ""
    level: Literal["fault", "note"] = "fault"


def check_ledger(ledger: Ledger, artifacts: Path, checkpoints: Path, *, deep: bool = False) -> list[LedgerFinding]:
    """Every finding; an empty list or notes alone mean that the ledger is whole.

    ``artifacts`` and ``checkpoints`` are the folders that rows point into.
    """
    found = integrity(ledger)
    if found:  # nothing that a damaged database says can be relied on
        return found
    revision, newest = ledger.revision(), ledger.newest_revision()
    if revision != newest:
        detail = f"the schema is {revision or 'empty'}, this program needs {newest}: nightshift db upgrade"
        return [LedgerFinding("schema", detail)]
    with ledger.read() as session:
        return [
            *_artifacts(session, artifacts, deep),
            *_artifact_columns(session),
            *_checkpoints(session, checkpoints, deep),
            *_lineage(session),
            *_decisions(session),
            *_leases(session),
        ]


def integrity(ledger: Ledger) -> list[LedgerFinding]:
    """What the database says of itself (SQLite only; a server checks its own pages)."""
    try:
        with ledger.read() as session:
            connection = session.connection()
            if connection.dialect.name != "sqlite":
                connection.execute(text("SELECT 1"))
                return []
            rows = [str(row[0]) for row in connection.execute(text("PRAGMA integrity_check"))]
            found = [LedgerFinding("integrity", row) for row in rows if row != "ok"]
            for table, rowid, parent, _key in connection.execute(text("PRAGMA foreign_key_check")):
                found.append(LedgerFinding("dangling-key", f"points at a missing {parent}", f"{table} {rowid}"))
            return found
    except DBAPIError as error:
        reason = str(error.orig)
        if "malformed" in reason or "not a database" in reason:
            return [LedgerFinding("integrity", reason)]
        raise


def row_counts(ledger: Ledger) -> dict[str, int]:
    """Rows of every table."""
    with ledger.read() as session:
        connection = session.connection()
        return {
            table.name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
            for table in METADATA.sorted_tables
        }


def _artifacts(session: Session, root: Path, deep: bool) -> Iterator[LedgerFinding]:
    known: set[str] = set()
    for artifact in session.exec(select(Artifact)):
        known.add(artifact.sha256)
        path, where = root / artifact.sha256[:2] / artifact.sha256, f"artifact {artifact.sha256[:12]}"
        if not path.is_file():
            yield LedgerFinding("missing-file", f"{path} is gone ({artifact.kind})", where)
        elif path.stat().st_size != artifact.size_bytes:
            yield LedgerFinding("changed-file", f"{path.stat().st_size} bytes, not {artifact.size_bytes}", where)
        elif deep and sha256_file(path) != artifact.sha256:
            yield LedgerFinding("changed-file", f"{path} no longer has its hash", where)
    for path in root.glob("??/*"):
        if path.name not in known:
            yield LedgerFinding("unlisted-file", f"{path} has no row (left by a run that was killed)", level="note")


def _artifact_columns(session: Session) -> Iterator[LedgerFinding]:
    known = set(session.exec(select(Artifact.sha256)))
    for table, column in ARTIFACT_COLUMNS:
        attribute = getattr(table, column)
        for row_id, sha256 in session.exec(select(table.id, attribute).where(attribute.is_not(None))):
            if sha256 not in known:
                detail = f"{column} {sha256[:12]} is no known artifact"
                yield LedgerFinding("dangling-artifact", detail, f"{table.__tablename__} {row_id}")


def _checkpoints(session: Session, root: Path, deep: bool) -> Iterator[LedgerFinding]:
    for checkpoint in session.exec(select(Checkpoint)):
        folder, where = root / checkpoint.path, f"checkpoint {checkpoint.name}"
        for name, sha256 in checkpoint.files.items():
            if not (folder / name).is_file():
                yield LedgerFinding("missing-file", f"{folder / name} is gone", where)
            elif deep and sha256_file(folder / name) != sha256:
                yield LedgerFinding("changed-file", f"{folder / name} no longer has its hash", where)


def _lineage(session: Session) -> Iterator[LedgerFinding]:
    checkpoints = {row.id: row for row in session.exec(select(Checkpoint))}
    datasets = set(session.exec(select(Dataset.id)))
    for row in checkpoints.values():
        where = f"checkpoint {row.name}"
        if row.night_id is not None and (row.parent_id is None or row.dataset_id is None):
            yield LedgerFinding("broken-lineage", "was trained, but its parent or data set is not recorded", where)
        if row.dataset_id is not None and row.dataset_id not in datasets:
            yield LedgerFinding("broken-lineage", f"data set {row.dataset_id} is missing", where)
        seen: set[int | None] = set()
        step: Checkpoint | None = row
        while step is not None and step.parent_id is not None and step.id not in seen:
            seen.add(step.id)
            if step.parent_id not in checkpoints:
                yield LedgerFinding("broken-lineage", f"its ancestor {step.parent_id} is missing", where)
            step = checkpoints.get(step.parent_id)
        if step is not None and step.id in seen:
            yield LedgerFinding("broken-lineage", "is its own ancestor", where)
    for night in session.exec(select(Night).where(col(Night.subject_id).is_not(None))):
        if night.subject_id not in checkpoints:
            yield LedgerFinding("broken-lineage", f"its subject {night.subject_id} is missing", f"night {night.id}")
    yield from _origins(session)


def _origins(session: Session) -> Iterator[LedgerFinding]:
    """A kernel commit ← candidate ← model call: what was proposed says where it comes from."""
    candidates = set(session.exec(select(Candidate.id)))
    for proposal in session.exec(select(Proposal).where(col(Proposal.candidate_id).is_not(None))):
        if proposal.candidate_id not in candidates:
            detail = f"candidate {proposal.candidate_id} is missing"
            yield LedgerFinding("broken-lineage", detail, f"proposal {proposal.id}")


def _decisions(session: Session) -> Iterator[LedgerFinding]:
    """Every merge has a person's review behind it; every finished experiment was finished once."""
    reviewed = set(session.exec(select(Review.proposal_id)))
    for proposal in session.exec(select(Proposal).where(col(Proposal.status).in_(("approved", "merged")))):
        if proposal.id not in reviewed:
            yield LedgerFinding("no-review", f"is {proposal.status} without a review", f"proposal {proposal.id}")
    for experiment in session.exec(select(Experiment).where(Experiment.finishes > 1)):
        detail = f"{experiment.kind}/{experiment.key} was finished {experiment.finishes} times"
        yield LedgerFinding("repeated", detail, f"experiment {experiment.id}")
    proposals = set(session.exec(select(Proposal.id)))
    for promotion in session.exec(select(Promotion).where(col(Promotion.proposal_id).is_not(None))):
        if promotion.proposal_id not in proposals:
            yield LedgerFinding("broken-lineage", "its proposal is missing", f"promotion {promotion.id}")


def _leases(session: Session) -> Iterator[LedgerFinding]:
    for row in session.exec(select(Experiment).where(col(Experiment.status).in_(("leased", "running")))):
        age_s = (now() - row.heartbeat_at).total_seconds() if row.heartbeat_at else float("inf")
        dead = row.owner is not None and not process.is_alive(row.owner)
        if dead or age_s > STALE_AFTER_S:
            why = "its process is dead" if dead else f"no heartbeat for {age_s:.0f} s"
            detail = f"{row.kind}/{row.key} is {row.status}, but {why}: the next night takes it up"
            yield LedgerFinding("stale-lease", detail, f"experiment {row.id}")
    for claim in session.exec(select(Reservation).where(col(Reservation.settled).is_(None))):
        if not process.is_alive(claim.owner):
            detail = f"{claim.amount:g} reserved by a dead process: the next night gives it back"
            yield LedgerFinding("stale-reservation", detail, f"reservation {claim.id}")


def faults(findings: Iterable[LedgerFinding]) -> list[LedgerFinding]:
    return [finding for finding in findings if finding.level == "fault"]


def copy_rows(source: Ledger, target: Ledger, on_table: Callable[[str, int], None] | None = None) -> int:
    """Copy every row of ``source`` into the empty, upgraded ``target`` in one transaction; returns their number."""
    copied = 0
    with source.read() as reader, target.write() as writer:
        out = writer.connection()
        for table in METADATA.sorted_tables:
            for batch in reader.connection().execute(table.select()).mappings().partitions(500):
                rows = [dict(row) for row in batch]
                out.execute(table.insert(), rows)
                copied += len(rows)
                if on_table is not None:
                    on_table(table.name, copied)
            if out.dialect.name == "postgresql" and "id" in table.c:  # ids were given: the sequence must follow them
                newest = out.execute(select(func.coalesce(func.max(table.c.id), 0))).scalar_one()
                out.execute(select(func.setval(func.pg_get_serial_sequence(table.name, "id"), newest + 1, False)))
    return copied
