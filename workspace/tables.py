"""The ledger's tables: one class per noun of the house.

Rows of the tables in ``APPEND_ONLY`` are evidence: inserted, never changed or deleted (database triggers made by the
first migration refuse it).  JSON columns are replaced as a whole, never edited in place.
Times are UTC; 64-bit seeds are kept as text, because SQLite's and JavaScript's integers are too narrow for them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, Column, DateTime, MetaData, UniqueConstraint
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

SQLModel.metadata.naming_convention = {  # Alembic needs names for constraints to drop them later
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
METADATA: MetaData = SQLModel.metadata

PROPOSAL_STATES = (
    "draft", "queued", "running", "awaiting_review", "changes_requested",
    "approved", "merged", "rejected", "failed", "withdrawn", "superseded",
)  # fmt: skip
EXPERIMENT_STATES = ("queued", "leased", "running", "done", "failed", "timed_out", "killed", "lost")
EVIDENCE_LEVELS = ("parsed", "interpreted", "compiled", "measured", "certified")
APPEND_ONLY = ("verdict", "review", "promotion", "event", "measurement", "evalrun", "modelcall")


def now() -> datetime:
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """Stores UTC, gives back aware datetimes (SQLite drops the zone)."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:  # noqa: ARG002  SQLAlchemy's signature
        return value.astimezone(UTC).replace(tzinfo=None) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:  # noqa: ARG002  SQLAlchemy's signature
        return value.replace(tzinfo=UTC) if value is not None else None


def _json() -> Any:
    return Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


def _json_list() -> Any:
    return Field(default_factory=list, sa_column=Column(JSON, nullable=False))


def _time(*, required: bool = True) -> Any:
    if required:
        return Field(default_factory=now, sa_column=Column(UtcDateTime(), nullable=False))
    return Field(default=None, sa_column=Column(UtcDateTime(), nullable=True))


class Night(SQLModel, table=True):
    """One scheduled or manual run. ``summary`` is the document that ``night --json`` prints."""

    id: int | None = Field(default=None, primary_key=True)
    profile: str
    only: list[str] = _json_list()
    status: str = "running"  # running | done | budget | interrupted | failed
    seed: str  # 64-bit, decimal; every seed of the night is derived from it and the lab's secret
    base_commit: str
    settings_sha256: str
    subject_id: int | None = None  # a checkpoint; no foreign key, checkpoints already point at nights
    fingerprint: dict[str, Any] = _json()
    summary: dict[str, Any] = _json()
    budget_wall_s: float
    starts: int = 1  # how often a process took this night up; above 1 means that it was resumed
    flow_run_id: str | None = None
    started_at: datetime = _time()
    ended_at: datetime | None = _time(required=False)


class Weakness(SQLModel, table=True):
    """An eval slice or a kernel cell below par, with its numbers."""

    id: int | None = Field(default=None, primary_key=True)
    night_id: int | None = Field(default=None, foreign_key="night.id", index=True)
    kind: str  # eval | kernel
    name: str
    figures: dict[str, Any] = _json()
    created_at: datetime = _time()


class Project(SQLModel, table=True):
    """A goal with owner, members, an eval, a budget and a life across nights."""

    id: int | None = Field(default=None, primary_key=True)
    title: str
    hypothesis: str
    kind: str  # kernel | data | posttrain
    target: str  # a kernel task or an eval
    owner: str
    origin: str = "person"  # person | model
    members: list[str] = _json_list()
    status: str = "open"  # open | active | shipped | closed
    eval_sha256: str | None = None
    eval_figures: dict[str, Any] = _json()
    budget_wall_s: float | None = None
    weakness_id: int | None = Field(default=None, foreign_key="weakness.id")
    created_at: datetime = _time()
    closed_at: datetime | None = _time(required=False)


class Proposal(SQLModel, table=True):
    """A hypothesis and a plan. ``head`` is what a review is bound to: a commit, or a checkpoint's sha256."""

    id: int | None = Field(default=None, primary_key=True)
    night_id: int | None = Field(default=None, foreign_key="night.id", index=True)
    project_id: int | None = Field(default=None, foreign_key="project.id", index=True)
    kind: str  # kernel | data | posttrain
    target: str  # kernel task, or eval
    slot: str = ""  # what it competes for, e.g. "rmsnorm/sm_90/4096": a merge supersedes others of the same slot
    title: str
    hypothesis: str = ""
    plan: dict[str, Any] = _json()
    author: str  # checkpoint name or person
    status: str = "draft"
    level: str | None = None  # best evidence level
    branch: str | None = None
    base_commit: str | None = None
    head: str | None = None
    candidate_id: int | None = None
    checkpoint_id: int | None = Field(default=None, foreign_key="checkpoint.id")
    merge_commit: str | None = None
    flags: list[str] = _json_list()  # e.g. "unmeasured", "override": stay for ever
    created_at: datetime = _time()
    changed_at: datetime = _time()


class Candidate(SQLModel, table=True):
    """One concrete version: a complete file (kernel) whose source is an artifact."""

    __table_args__ = (UniqueConstraint("night_id", "task", "sha256"),)

    id: int | None = Field(default=None, primary_key=True)
    night_id: int | None = Field(default=None, foreign_key="night.id", index=True)
    proposal_id: int | None = Field(default=None, foreign_key="proposal.id", index=True)
    model_call_id: int | None = Field(default=None, foreign_key="modelcall.id")
    task: str
    sha256: str  # of the complete source, which is the artifact of that name
    move: dict[str, Any] = _json()
    created_at: datetime = _time()


class Experiment(SQLModel, table=True):
    """One run of a candidate or of a step of the night; at most one success per (night, kind, key)."""

    __table_args__ = (UniqueConstraint("night_id", "kind", "key"),)

    id: int | None = Field(default=None, primary_key=True)
    night_id: int = Field(foreign_key="night.id", index=True)
    proposal_id: int | None = Field(default=None, foreign_key="proposal.id")
    candidate_id: int | None = Field(default=None, foreign_key="candidate.id")
    kind: str
    key: str
    status: str = "queued"
    attempts: int = 0
    finishes: int = 0  # times that a result was stored: must never pass 1
    owner: str | None = None  # pid, process start time and boot id of the lease's holder
    heartbeat_at: datetime | None = _time(required=False)
    fingerprint: dict[str, Any] = _json()
    seeds: dict[str, Any] = _json()
    result: dict[str, Any] = _json()
    error: str | None = None
    started_at: datetime | None = _time(required=False)
    ended_at: datetime | None = _time(required=False)


class Measurement(SQLModel, table=True):
    """Raw samples (an artifact) and their summary."""

    id: int | None = Field(default=None, primary_key=True)
    experiment_id: int = Field(foreign_key="experiment.id", index=True)
    name: str
    unit: str
    samples_sha256: str
    summary: dict[str, Any] = _json()
    created_at: datetime = _time()


class Verdict(SQLModel, table=True):
    """A decision with its statistics. Never edited: a later row names the one it supersedes."""

    id: int | None = Field(default=None, primary_key=True)
    night_id: int | None = Field(default=None, foreign_key="night.id", index=True)
    experiment_id: int | None = Field(default=None, foreign_key="experiment.id")
    proposal_id: int | None = Field(default=None, foreign_key="proposal.id", index=True)
    candidate_id: int | None = Field(default=None, foreign_key="candidate.id")
    decision: str  # accepted | rejected | error | promote | reject | inconclusive
    level: str | None = None
    judge_sha256: str
    figures: dict[str, Any] = _json()
    supersedes_id: int | None = Field(default=None, foreign_key="verdict.id")
    created_at: datetime = _time()


class Review(SQLModel, table=True):
    """A person's decision, bound to the commit or checkpoint that was looked at."""

    id: int | None = Field(default=None, primary_key=True)
    proposal_id: int = Field(foreign_key="proposal.id", index=True)
    reviewer: str
    decision: str  # approve | reject | request_changes | merge
    reason: str = ""
    head: str
    options: dict[str, Any] = _json()
    created_at: datetime = _time()


class Dataset(SQLModel, table=True):
    """A Parquet file with its manifest (both artifacts) and lineage."""

    id: int | None = Field(default=None, primary_key=True)
    night_id: int | None = Field(default=None, foreign_key="night.id")
    project_id: int | None = Field(default=None, foreign_key="project.id")
    proposal_id: int | None = Field(default=None, foreign_key="proposal.id")
    checkpoint_id: int = Field(foreign_key="checkpoint.id")  # who wrote its own answers
    name: str
    target: str
    rows: int
    parquet_sha256: str
    manifest_sha256: str
    recipe_sha256: str
    figures: dict[str, Any] = _json()
    created_at: datetime = _time()


class Recipe(SQLModel, table=True):
    """A data or post-training recipe as it was used (the file is an artifact)."""

    sha256: str = Field(primary_key=True)
    name: str
    kind: str
    created_at: datetime = _time()


class Checkpoint(SQLModel, table=True):
    """A model on disk, by content. ``path`` is relative to the lab's checkpoint folder."""

    __table_args__ = (UniqueConstraint("name"),)

    id: int | None = Field(default=None, primary_key=True)
    name: str
    sha256: str  # of the sorted list of (file name, sha256)
    path: str
    parent_id: int | None = Field(default=None, foreign_key="checkpoint.id")
    dataset_id: int | None = None  # no foreign key, data sets already point at the checkpoint that wrote them
    night_id: int | None = Field(default=None, foreign_key="night.id")
    recipe_sha256: str | None = None
    source: str
    licence: str
    files: dict[str, Any] = _json()  # name → sha256
    figures: dict[str, Any] = _json()
    created_at: datetime = _time()


class Promotion(SQLModel, table=True):
    """The subject model over time: the newest row is the next night's model."""

    id: int | None = Field(default=None, primary_key=True)
    checkpoint_id: int = Field(foreign_key="checkpoint.id")
    previous_id: int | None = Field(default=None, foreign_key="checkpoint.id")
    proposal_id: int | None = Field(default=None, foreign_key="proposal.id")
    by: str
    reason: str
    override: bool = False
    created_at: datetime = _time()


class EvalRun(SQLModel, table=True):
    """One checkpoint on one list of items; items with replies are an artifact (JSON lines)."""

    id: int | None = Field(default=None, primary_key=True)
    night_id: int | None = Field(default=None, foreign_key="night.id", index=True)
    experiment_id: int | None = Field(default=None, foreign_key="experiment.id")
    checkpoint_id: int = Field(foreign_key="checkpoint.id")
    eval: str
    role: str  # survey | target | guard | prose | manual
    count: int
    strict: float
    stderr: float
    lenient: float
    rows_sha256: str
    created_at: datetime = _time()


class ModelCall(SQLModel, table=True):
    """One request to a model; request and reply are artifacts. ``request_sha256`` and ``seed`` find a reply again."""

    id: int | None = Field(default=None, primary_key=True)
    night_id: int | None = Field(default=None, foreign_key="night.id", index=True)
    project_id: int | None = Field(default=None, foreign_key="project.id")
    role: str
    endpoint: str  # "embedded" or the endpoint's name
    model: str  # checkpoint name, or the model's name at the endpoint
    request_sha256: str = Field(index=True)
    reply_sha256: str | None = None
    seed: str = ""
    attempt: int = 1
    status: str  # done | failed
    error: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    latency_s: float = 0.0
    created_at: datetime = _time()


class BudgetLine(SQLModel, table=True):
    """What one scope may spend of one resource. ``reserved`` is open, ``spent`` is settled."""

    __table_args__ = (UniqueConstraint("scope", "resource"),)

    id: int | None = Field(default=None, primary_key=True)
    scope: str  # "night:3", "project:2", "role:kernel_author/night:3"
    resource: str  # tokens | usd | wall_s | accelerator_s
    cap: float | None = None  # None: counted, not limited
    reserved: float = 0.0
    spent: float = 0.0


class Reservation(SQLModel, table=True):
    """An open claim on a budget line; a dead owner's is given back when the lab is taken up again."""

    id: int | None = Field(default=None, primary_key=True)
    line_id: int = Field(foreign_key="budgetline.id", index=True)
    amount: float
    owner: str
    settled: float | None = None
    created_at: datetime = _time()


class Event(SQLModel, table=True):
    """Append-only log: what started, crashed, was resumed, was disposed of."""

    id: int | None = Field(default=None, primary_key=True)
    night_id: int | None = Field(default=None, foreign_key="night.id", index=True)
    kind: str
    message: str
    data: dict[str, Any] = _json()
    at: datetime = _time()


class Artifact(SQLModel, table=True):
    """A file of the content-addressed store that some row relies on."""

    sha256: str = Field(primary_key=True)
    size_bytes: int
    kind: str
    created_at: datetime = _time()
