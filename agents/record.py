"""Every request to a model on the record: paid from a budget, stored once, answered from the store when asked again.

A request and its reply are artifacts; the row that points at them is written after both.  A night that is taken up
again finds a finished call by (night, role, request, seed) and gets the stored reply: nothing is paid for twice.
Values of environment variables that look like credentials are cut out before anything is hashed or stored.

Not covered: choosing a model, retrying a call (the roles decide that, with another seed).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sqlmodel import Session, col, func, select

from model.items import Message
from workspace.artifacts import canonical_json
from workspace.budget import Budget
from workspace.files import sha256_bytes
from workspace.lab import Lab
from workspace.tables import Checkpoint, ModelCall, Night

EMBEDDED = "embedded"
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH(?!OR)", re.IGNORECASE)
SECRET_MIN_LENGTH = 8  # shorter values ("1", "true") occur in any text


@dataclass(frozen=True)
class Outcome:
    """What a model gave back. ``error`` names a reply that cannot be used; tokens were spent all the same."""

    reply: dict[str, Any]
    tokens_in: int
    tokens_out: int
    error: str = ""


@dataclass(frozen=True)
class Call:
    """A recorded call. ``replayed`` says that the reply came from the store."""

    id: int
    reply: dict[str, Any]
    error: str
    replayed: bool


class Recorder:
    """Makes the calls of one role in one night.

    ``model`` is the name of the checkpoint that answers; by default the night's subject.  The tokens of a call are
    reserved before it in the scopes ``night:ID``, ``role:ROLE/night:ID`` and, for a project's work, ``project:ID``;
    ``BudgetExceeded`` is raised before the model is asked.  ``night_id`` None records a call made by hand.
    """

    def __init__(
        self,
        lab: Lab,
        night_id: int | None,
        role: str,
        *,
        model: str | None = None,
        endpoint: str = EMBEDDED,
        project_id: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.lab = lab
        self.night_id = night_id
        self.role = role
        self.model = model if model is not None else _subject_name(lab, night_id)
        self.endpoint = endpoint
        self.project_id = project_id
        self._budget = budget or Budget(lab.ledger)

    def call(self, request: Mapping[str, Any], work: Callable[[], Outcome], *, seed: int, max_tokens: int) -> Call:
        """The stored reply to ``request`` under ``seed``, or that of ``work()``, which is then stored.

        ``max_tokens`` is an upper bound of the tokens of the call, in and out.  An exception of ``work`` is recorded as
        a failed call and raised again; an ``Outcome`` with an error is recorded as failed and returned.
        """
        document = self._document(request)
        request_sha256 = sha256_bytes(canonical_json(document))
        stored = self._stored(request_sha256, seed)
        if stored is not None:
            return stored
        with self._reserved(max_tokens) as used:
            begin = time.monotonic()
            try:
                outcome = work()
            except BaseException as error:
                failed = Outcome({}, 0, 0, f"{type(error).__name__}: {error}")
                self._store(document, failed, seed, time.monotonic() - begin)
                raise
            used.append(outcome.tokens_in + outcome.tokens_out)
            return self._store(document, outcome, seed, time.monotonic() - begin)

    def _document(self, request: Mapping[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = redact(
            {"endpoint": self.endpoint, "model": self.model, "role": self.role, **request}
        )
        return document

    def _stored(self, request_sha256: str, seed: int) -> Call | None:
        with self.lab.ledger.read() as session:
            row = session.exec(self._same(request_sha256, seed).where(ModelCall.status == "done")).first()
        if row is None or row.reply_sha256 is None or row.id is None:
            return None
        return Call(row.id, self.lab.artifacts.get_json(row.reply_sha256), "", replayed=True)

    def _same(self, request_sha256: str, seed: int) -> Any:
        return (
            select(ModelCall)
            .where(
                col(ModelCall.night_id).is_not_distinct_from(self.night_id),
                ModelCall.role == self.role,
                ModelCall.request_sha256 == request_sha256,
                ModelCall.seed == str(seed),
            )
            .order_by(col(ModelCall.id))
        )

    def _store(self, document: dict[str, Any], outcome: Outcome, seed: int, latency_s: float) -> Call:
        """Files first, then the row."""
        reply = redact(outcome.reply)
        request_sha256 = self.lab.artifacts.put_json(document, "model-request")
        reply_sha256 = self.lab.artifacts.put_json(reply, "model-reply")
        with self.lab.ledger.write() as session:
            row = ModelCall(
                night_id=self.night_id,
                project_id=self.project_id,
                role=self.role,
                endpoint=self.endpoint,
                model=self.model,
                request_sha256=request_sha256,
                reply_sha256=reply_sha256,
                seed=str(seed),
                attempt=1 + self._count(session, request_sha256, seed),
                status="failed" if outcome.error else "done",
                error=redact(outcome.error) or None,
                tokens_in=outcome.tokens_in,
                tokens_out=outcome.tokens_out,
                latency_s=latency_s,
            )
            session.add(row)
            session.flush()
            assert row.id is not None
            return Call(row.id, reply, outcome.error, replayed=False)

    def _count(self, session: Session, request_sha256: str, seed: int) -> int:
        rows = self._same(request_sha256, seed).order_by(None).subquery()
        return int(session.exec(select(func.count()).select_from(rows)).one())

    @contextmanager
    def _reserved(self, max_tokens: int) -> Iterator[list[int]]:
        """Hold ``max_tokens`` in every scope; what is appended to the list is what was used."""
        used: list[int] = []
        held: list[int] = []
        try:
            for scope in self._scopes():
                held.append(self._budget.reserve(scope, "tokens", max_tokens))  # noqa: PERF401 - kept when the next fails
            yield used
        finally:
            for reservation in held:
                self._budget.settle(reservation, sum(used))

    def _scopes(self) -> list[str]:
        scopes = [f"project:{self.project_id}"] if self.project_id is not None else []
        if self.night_id is not None:
            scopes += [f"night:{self.night_id}", f"role:{self.role}/night:{self.night_id}"]
        return scopes


def _subject_name(lab: Lab, night_id: int | None) -> str:
    with lab.ledger.read() as session:
        night = session.get(Night, night_id) if night_id is not None else None
        row = session.get(Checkpoint, night.subject_id) if night is not None and night.subject_id is not None else None
    if row is None:
        raise ValueError(f"night {night_id} has no subject: name the model")
    return row.name


def messages_json(conversation: Sequence[Message]) -> list[dict[str, Any]]:
    """A conversation as plain JSON, part by part."""
    return [{"role": each.role, "parts": [asdict(part) for part in each.parts]} for each in conversation]


def redact(value: Any) -> Any:
    """``value`` with every credential of the environment replaced by its variable's name, at any depth."""
    secrets = [
        (name, text) for name, text in os.environ.items() if len(text) >= SECRET_MIN_LENGTH and SECRET_NAME.search(name)
    ]
    secrets.sort(key=lambda pair: len(pair[1]), reverse=True)  # one value may contain another
    return _replace(value, secrets) if secrets else value


def _replace(value: Any, secrets: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for name, text in secrets:
            value = value.replace(text, f"[{name}]")
        return value
    if isinstance(value, Mapping):
        return {_replace(key, secrets): _replace(part, secrets) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replace(part, secrets) for part in value]
    return value
