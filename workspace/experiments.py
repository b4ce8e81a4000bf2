"""At most one success per experiment: a lease with a heartbeat, and results that are stored once.

``run_once`` is what every step of a night goes through.  A finished experiment is read back, never repeated; one whose
holder died is ``lost``, returns to the queue, and its attempts are counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlmodel import col, select

from workspace import process
from workspace.errors import Interrupted, NightshiftError
from workspace.fingerprint import fingerprint
from workspace.ledger import Ledger
from workspace.tables import Event, Experiment, now

HEARTBEAT_S = 10.0
STALE_AFTER_S = 120.0
MAX_ATTEMPTS = 25  # a step that takes its process down this often is at fault itself


class ExperimentFailed(NightshiftError):
    """The work raised, or took its process down too often; the row says why."""


def run_once(
    ledger: Ledger,
    night_id: int,
    kind: str,
    key: str,
    work: Callable[[], dict[str, Any]],
    *,
    proposal_id: int | None = None,
    candidate_id: int | None = None,
    seeds: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The result of (night, kind, key): stored if it was done before, else ``work()``, stored.

    A failure of ``work`` is recorded and re-raised; the next run tries again (a failed attempt is not a finished
    experiment).  ExperimentFailed when the lease is held by a living process or attempts are used up.
    """
    row = _lease(ledger, night_id, kind, key, proposal_id, candidate_id, dict(seeds or {}))
    if row.status == "done":
        return row.result
    assert row.id is not None
    try:
        with _heartbeat(ledger, row.id):
            result = work()
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt | Interrupted)
        _finish(ledger, row.id, "killed" if interrupted else "failed", error=f"{type(error).__name__}: {error}")
        raise
    _finish(ledger, row.id, "done", result=result)
    return result


def experiment_id(ledger: Ledger, night_id: int, kind: str, key: str) -> int | None:
    """The row's id, or None."""
    with ledger.read() as session:
        return session.exec(
            select(Experiment.id).where(Experiment.night_id == night_id, Experiment.kind == kind, Experiment.key == key)
        ).first()


def stored_result(ledger: Ledger, night_id: int, kind: str, key: str) -> dict[str, Any] | None:
    """What a finished experiment stored, or None."""
    with ledger.read() as session:
        row = session.exec(
            select(Experiment).where(Experiment.night_id == night_id, Experiment.kind == kind, Experiment.key == key)
        ).first()
    return row.result if row is not None and row.status == "done" else None


def reap_lost(ledger: Ledger, night_id: int | None = None) -> list[str]:
    """Mark experiments of dead holders ``lost`` (they run again); returns their names."""
    with ledger.write() as session:
        held = select(Experiment).where(col(Experiment.status).in_(("leased", "running")))
        if night_id is not None:
            held = held.where(Experiment.night_id == night_id)
        lost = [row for row in session.exec(held).all() if _is_lost(row)]
        for row in lost:
            row.status = "lost"
            session.add(row)
            name = f"{row.kind}/{row.key}"
            session.add(Event(night_id=row.night_id, kind="lost", message=name, data={"attempts": row.attempts}))
        return [f"{row.kind}/{row.key}" for row in lost]


def _is_lost(row: Experiment) -> bool:
    if row.owner is not None and not process.is_alive(row.owner):
        return True
    return row.heartbeat_at is None or now() - row.heartbeat_at > timedelta(seconds=STALE_AFTER_S)


def _lease(
    ledger: Ledger,
    night_id: int,
    kind: str,
    key: str,
    proposal_id: int | None,
    candidate_id: int | None,
    seeds: dict[str, Any],
) -> Experiment:
    with ledger.write() as session:
        row = session.exec(
            select(Experiment)
            .where(Experiment.night_id == night_id, Experiment.kind == kind, Experiment.key == key)
            .with_for_update()
        ).first()
        if row is None:
            row = Experiment(
                night_id=night_id, kind=kind, key=key, proposal_id=proposal_id, candidate_id=candidate_id, seeds=seeds
            )
        elif row.status == "done":
            return row
        elif row.status in ("leased", "running") and not _is_lost(row) and row.owner != process.identity():
            raise ExperimentFailed(f"{kind}/{key} is being run by another process", remedy="wait for it")
        if row.attempts >= MAX_ATTEMPTS:
            raise ExperimentFailed(f"{kind}/{key} was tried {row.attempts} times: {row.error or 'its process died'}")
        row.status = "running"
        row.attempts += 1
        row.owner = process.identity()
        row.heartbeat_at = now()
        row.started_at = row.started_at or now()
        row.fingerprint = fingerprint()
        row.error = None
        session.add(row)
        session.flush()
        return row


def _finish(
    ledger: Ledger, row_id: int, status: str, *, result: dict[str, Any] | None = None, error: str | None = None
) -> None:
    with ledger.write() as session:
        row = session.get_one(Experiment, row_id)
        row.status = status
        row.owner = None
        row.ended_at = now()
        row.error = error
        if result is not None:
            row.result = result
            row.finishes += 1
        session.add(row)
        if error is not None:
            name = f"{row.kind}/{row.key}"
            session.add(Event(night_id=row.night_id, kind=status, message=name, data={"error": error[:2000]}))


@contextmanager
def _heartbeat(ledger: Ledger, row_id: int) -> Iterator[None]:
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_S):
            with ledger.write() as session:
                row = session.get_one(Experiment, row_id)
                row.heartbeat_at = now()
                session.add(row)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
