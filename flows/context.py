"""What every step of a night shares: the lab, the settings as they were at its start, seeds, the clock, the sandboxes.

Prefect passes only a night's id between flows (parameters are stored as JSON); the object itself is looked up here.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlmodel import col, select

from model.checkpoints import folder_of
from model.evals import derive_seed
from model.items import Eval, Item
from workspace.budget import Budget
from workspace.experiments import experiment_id, run_once, stored_result
from workspace.files import sha256_bytes, write_atomically
from workspace.lab import Lab
from workspace.sandbox import Sandboxes
from workspace.settings import Settings
from workspace.tables import Checkpoint, Event, Night

if TYPE_CHECKING:
    from model.language_model import LanguageModel

STEPS = ("import", "survey", "kernels", "data", "posttrain", "judge", "report")
# share of a default night's wall clock, for the ETA of the whole; the report shows what each step really took
WEIGHTS = {"import": 3, "survey": 9, "kernels": 18, "data": 12, "posttrain": 35, "judge": 22, "report": 1}
SAY_EVERY_S = 10.0  # of lines that come often, such as one per training step
Progress = Callable[[str, int, int], None]


@dataclass
class NightRun:
    """One process's work on one night."""

    lab: Lab
    night: Night
    settings: Settings
    sandboxes: Sandboxes
    base: Path  # kernels/, evals/ and recipes/ as they are at the base commit
    progress: Progress
    speak: Callable[[str], None] = lambda _line: None
    started: float = field(default_factory=time.monotonic)
    spent_before_s: float = 0.0
    took_s: dict[str, float] = field(default_factory=dict)
    resumed: list[str] = field(default_factory=list)
    _spoke_at: float = 0.0
    _models: dict[str, LanguageModel] = field(default_factory=dict)

    @property
    def id(self) -> int:
        assert self.night.id is not None
        return self.night.id

    def spent_s(self) -> float:
        """Wall clock of this night so far, over all processes that worked on it."""
        return self.spent_before_s + time.monotonic() - self.started

    def left_s(self) -> float:
        return self.night.budget_wall_s - self.spent_s()

    def wants(self, kind: str) -> bool:
        """Whether ``--only`` leaves this kind in."""
        return not self.night.only or kind in self.night.only

    def seed(self, *purpose: object) -> int:
        """A 64-bit seed for one purpose: from the night's seed and the lab's secret, so that nobody can foresee it."""
        secret = int.from_bytes(self.lab.secret("night-seeds")[:8], "big")
        return derive_seed(int(self.night.seed) ^ secret, *purpose)

    def once(
        self, kind: str, key: str, work: Callable[[], dict[str, Any]], *, candidate_id: int | None = None
    ) -> dict[str, Any]:
        """``run_once`` for this night; notes what was already done."""
        done = stored_result(self.lab.ledger, self.id, kind, key)
        if done is not None:
            if self.night.starts > 1 and kind != "self-test":  # dozens of them, and no news
                self.resumed.append(f"{kind}/{key}")
            return done
        return run_once(self.lab.ledger, self.id, kind, key, work, candidate_id=candidate_id)

    def experiment_id(self, kind: str, key: str) -> int:
        found = experiment_id(self.lab.ledger, self.id, kind, key)
        assert found is not None, f"{kind}/{key} has no row"
        return found

    def model(self, checkpoint: Checkpoint) -> LanguageModel:
        """The checkpoint in memory; only one is kept (538 MB each)."""
        from model.language_model import LanguageModel

        if checkpoint.name not in self._models:
            self._models.clear()
            self._models[checkpoint.name] = LanguageModel.load(
                folder_of(self.lab, checkpoint), self.settings.model.threads
            )
        return self._models[checkpoint.name]

    def forget_models(self) -> None:
        """Free the memory before a training sandbox needs it."""
        self._models.clear()

    @property
    def threads(self) -> int:
        return self.settings.model.threads or os.cpu_count() or 1

    def say(self, line: str, *, often: bool = False) -> None:
        """A line for the person who watches; one that comes ``often`` is said every ten seconds."""
        moment = time.monotonic()
        if not often or moment - self._spoke_at >= SAY_EVERY_S:
            self._spoke_at = moment
            self.speak(line)

    @contextmanager
    def tokens(self, at_most: int) -> Iterator[list[int]]:
        """Reserve tokens of the night before a batch of local generation; what is appended is what was used."""
        used: list[int] = []
        claim = self.budget.reserve(self.scope, "tokens", at_most)
        try:
            yield used
        finally:
            self.budget.settle(claim, sum(used))

    def flag(self, text: str) -> None:
        """Something that the report must say, once per night."""
        if text not in self.flags():
            self.lab.ledger.log("flag", text, night_id=self.id)

    def flags(self) -> list[str]:
        with self.lab.ledger.read() as session:
            flagged = select(Event.message).where(Event.night_id == self.id, Event.kind == "flag")
            return list(session.exec(flagged.order_by(col(Event.id))).all())

    @property
    def budget(self) -> Budget:
        return Budget(self.lab.ledger)

    @property
    def scope(self) -> str:
        return f"night:{self.id}"


def coarse_task(name: str, work: Callable[[], Any], *, retries: int = 0) -> Any:
    """Run ``work`` as one Prefect task. ``retries`` only where the effect is idempotent."""
    from prefect import task
    from prefect.cache_policies import NO_CACHE

    return task(name=name, retries=retries, cache_policy=NO_CACHE, persist_result=False)(work)()


def most_tokens(work: Sequence[tuple[Eval, Sequence[Item]]]) -> int:
    """An upper bound of the tokens of evals: a token is at least a byte, a template adds few."""
    return sum(
        len(message.text.encode()) + 32 + each.MAX_NEW_TOKENS
        for each, items in work
        for item in items
        for message in item.messages
    )


_RUNS: dict[int, NightRun] = {}


def register(run: NightRun) -> None:
    _RUNS[run.id] = run


def forget(run: NightRun) -> None:
    _RUNS.pop(run.id, None)


def running(night_id: int) -> NightRun:
    """The run that this process works on."""
    return _RUNS[night_id]


def export_base(lab: Lab, commit: str) -> Path:
    """kernels/, evals/ and recipes/ of a commit as plain files in the state folder; made once per commit.

    What a person has not committed is not part of a night: proposals are branches of this commit.
    """
    folder = lab.state / "base" / commit
    done = folder / ".complete"
    if done.exists():
        return folder
    shutil.rmtree(folder.parent, ignore_errors=True)
    for top in ("kernels", "evals", "recipes"):
        (folder / top).mkdir(parents=True, exist_ok=True)
        for path in lab.git.list_files(commit, top):
            write_atomically(folder / path, lab.git.read_file(commit, path))
    write_atomically(done, commit.encode())
    return folder


def settings_sha256(text: str) -> str:
    return sha256_bytes(text.encode())
