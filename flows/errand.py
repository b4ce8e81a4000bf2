"""A night for one purpose: one task's campaign, or one recipe's successor, now and outside of the schedule.

It is a night like any other (ledger, budget, resuming, report), with a profile of its own laid over the lab's settings,
so that the record says what it ran with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from workspace.errors import SurroundingsError
from workspace.lab import Lab
from workspace.tables import Checkpoint, Night


@dataclass(frozen=True)
class Errand:
    """``table`` is the TOML under ``[profiles.NAME]``; ``parent`` is trained from instead of the lab's subject."""

    name: str
    only: str
    table: str
    parent: Checkpoint | None = None

    def profile(self, lab: Lab) -> str:
        return f"{lab.profile}+{self.name}"

    def settings_text(self, text: str) -> str:
        return f"{text.rstrip()}\n\n[profiles.{self.name}]\n{self.table}\n"


def optimize(task: str, candidates: int) -> Errand:
    """A campaign of ``candidates`` for one kernel task."""
    return Errand(
        f"optimize-{task}", "kernels", f"kernels = {{ tasks = [{json.dumps(task)}], candidates = {candidates} }}"
    )


def train(recipe: str, parent: Checkpoint | None) -> Errand:
    """A successor by ``recipes/RECIPE.toml``, for the weakness that a survey of the parent finds."""
    return Errand(f"posttrain-{recipe}", "posttrain", f"data = {{ recipe = {json.dumps(recipe)} }}", parent)


def is_errand(night: Night) -> bool:
    """Whether it was asked for by name, so that it works on nothing else."""
    return night.profile.rpartition("+")[2].startswith(("optimize-", "posttrain-"))


def refuse_other(night: Night, errand: Errand | None, lab: Lab) -> None:
    """An unfinished night goes first; SurroundingsError unless it is this errand's own, which is taken up."""
    if errand is not None and night.profile != errand.profile(lab):
        raise SurroundingsError(
            f"night {night.id} (profile {night.profile}) is unfinished",
            remedy="nightshift night goes on with it; then give this command again",
        )
