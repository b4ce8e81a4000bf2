"""What the morning report is made of: plain dataclasses, no database and no layout.

`review.report` fills them from the ledger; `review.text`, `review.html` and `--json` show them. Times are UTC,
durations in seconds; kernel times are predictions in microseconds and are called so wherever they appear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

Outcome = Literal["better", "non-inferior", "worse", "inconclusive"]
Headline = Literal["promote", "hold", "undecided"]
Resource = Literal["tokens", "usd", "wall_s", "accelerator_s"]
Tone = Literal["good", "warn", "bad", "note"]


@dataclass(frozen=True)
class Claim:
    """One line of the gate: parent and successor on the same items of one eval, or of guards pooled over kinds.

    Prose is judged by log-perplexity (nats per token): all its figures are logarithms.
    """

    eval: str
    role: Literal["target", "guard"]
    n: int
    parent: float
    successor: float
    difference: float
    ci95: tuple[float, float] | None
    test: str
    p: float | None
    p_holm: float | None
    margin: float | None
    power: float | None
    outcome: str
    gained: int | None = None
    lost: int | None = None

    @property
    def is_share(self) -> bool:
        """True for a share of right answers (0 to 1), False for log-perplexity."""
        return "perplexity" not in self.eval


@dataclass(frozen=True)
class GuardKind:
    """One kind of item in the pool of guards; one where the parent is at floor or chance proves nothing."""

    kind: str
    n: int
    parent: float
    successor: float
    counts: bool
    worse: bool
    reason: str


@dataclass(frozen=True)
class Check:
    """One integrity check of the gate."""

    check: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Decision:
    """Promote or hold, with the figures that carry it."""

    headline: Headline
    verdict: str | None
    sentence: str
    next_step: str
    parent: str = ""
    successor: str = ""
    proposal_id: str = ""
    alpha: float = 0.05
    claims: Sequence[Claim] = ()
    integrity: Sequence[Check] = ()
    kinds: Sequence[GuardKind] = ()
    would_have_taken: Sequence[str] = ()

    @property
    def targets(self) -> list[Claim]:
        return [c for c in self.claims if c.role == "target"]

    @property
    def guards(self) -> list[Claim]:
        return [c for c in self.claims if c.role == "guard"]


@dataclass(frozen=True)
class Patch:
    """A kernel patch that waits for a person. ``gain`` compares two predictions; it is never a measurement."""

    proposal_id: str
    title: str
    status: str
    cell: str
    branch: str
    commit: str
    level: str
    incumbent_us: float | None
    predicted_us: float | None
    judge: str
    measured_ratio: float | None = None

    @property
    def gain(self) -> float | None:
        """Predicted share of the incumbent's time that is saved (0.25 is a quarter less)."""
        if not self.incumbent_us or self.predicted_us is None:
            return None
        return 1.0 - self.predicted_us / self.incumbent_us


@dataclass(frozen=True)
class CandidatePoint:
    """One candidate in one cell; ``predicted_us`` is None where it was refused before a prediction."""

    name: str
    schedule: str
    verdict: str
    level: str
    predicted_us: float | None
    reason: str = ""


@dataclass(frozen=True)
class Cell:
    """All candidates of one (task, target, size), with the incumbent's predicted time and the physical floor."""

    task: str
    target: str
    size: int
    incumbent_us: float | None
    floor_us: float | None
    candidates: Sequence[CandidatePoint] = ()

    @property
    def name(self) -> str:
        return f"{self.task} {self.target} n={self.size}"

    @property
    def best_us(self) -> float | None:
        times = [c.predicted_us for c in self.candidates if c.predicted_us is not None and c.verdict == "accepted"]
        return min(times, default=None)


@dataclass(frozen=True)
class Spend:
    """One budget line; ``cap`` is None where the settings set no limit."""

    name: Resource
    used: float
    cap: float | None

    @property
    def share(self) -> float | None:
        return self.used / self.cap if self.cap else None


@dataclass(frozen=True)
class Flag:
    """Something a reader must know before believing the rest."""

    tone: Tone
    text: str
    code: str = ""


@dataclass(frozen=True)
class Incident:
    """Something that crashed, hung, was killed or was taken up again."""

    what: str
    status: str
    detail: str
    attempts: int = 1


@dataclass(frozen=True)
class Tonight:
    """What comes next: the schedule and the queue, persons' projects before the model's own ideas."""

    cron: str
    next_run: datetime | None
    queue: Sequence[str] = ()
    model: str = ""
    note: str = ""


@dataclass(frozen=True)
class SurveyLine:
    """One family of the survey, with its standard error in the same unit as the score (share of right answers)."""

    family: str
    n: int
    strict: float
    stderr: float
    lenient: float | None
    distinct_items: float | None
    chosen: bool
    reason: str


@dataclass(frozen=True)
class Training:
    """The data set and the training run behind the successor."""

    dataset_id: str = ""
    rows: int = 0
    shares: dict[str, float] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    wall_s: float = 0.0
    tokens_per_s: float | None = None
    loss_curve: Sequence[tuple[float, ...]] = ()


@dataclass(frozen=True)
class Report:
    """One night, ready to be shown."""

    lab: str
    night: str
    status: str
    started_at: datetime | None
    ended_at: datetime | None
    profile: str
    current_step: str
    decision: Decision
    patches: Sequence[Patch] = ()
    cells: Sequence[Cell] = ()
    spend: Sequence[Spend] = ()
    flags: Sequence[Flag] = ()
    incidents: Sequence[Incident] = ()
    tonight: Tonight = Tonight(cron="", next_run=None)
    survey: Sequence[SurveyLine] = ()
    training: Training = Training()
    took_s: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The `report --json` document; times in ISO 8601."""
        return {str(key): value for key, value in plain(asdict(self)).items()}


def plain(value: Any) -> Any:
    """Dataclass output as JSON types: ISO 8601 times, lists, string keys."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
