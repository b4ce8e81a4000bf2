"""The items that a night judges on: drawn once, before anything is trained, and kept from every data set.

Seeds come from the night's seed and the lab's secret, so nobody can train on them in advance; target items are fresh,
not those on which the weakness was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

from flows.context import NightRun
from flows.plan import Plan
from flows.survey_step import night_evals
from model.evals import draw_items, load_evals
from model.items import Eval, Item


@dataclass
class JudgedItems:
    """Target items, guard items by eval, and prose passages."""

    target: Eval
    target_items: list[Item]
    guards: dict[str, Eval]
    guard_items: dict[str, list[Item]]
    prose: list[str]
    survey_keys: set[str]

    @cached_property
    def forbidden(self) -> list[tuple[str, list[Item]]]:
        """Everything that no data set may hold, named."""
        return [(self.target.name, self.target_items), *sorted(self.guard_items.items())]


def judged_items(run: NightRun, target_name: str, survey: dict[str, Any], planned: Plan) -> JudgedItems:
    """Draw them; the same night draws the same items again."""
    target = night_evals(run)[target_name]
    keys = run.lab.artifacts.get_json(survey["items_sha256"])
    seen = set(keys.get(target_name, []))
    settings = run.settings.judge
    guards = load_evals(run.base / "evals")
    guards.pop(target_name, None)
    share = -(-planned.guard_items // max(len(guards), 1))
    drawn = {name: draw_items(guard, run.seed("judge", name), share) for name, guard in guards.items()}
    missing = planned.guard_items - sum(len(items) for items in drawn.values())
    for name, guard in guards.items():  # a guard with few distinct items leaves its share to the others
        if missing > 0 and len(drawn[name]) >= share:
            more = draw_items(guard, run.seed("judge", name), share + missing)
            missing -= len(more) - len(drawn[name])
            drawn[name] = more
    return JudgedItems(
        target,
        draw_items(target, run.seed("judge", target_name), settings.target_items, seen),
        guards, drawn, prose_passages(), {key for names in keys.values() for key in names},
    )  # fmt: skip


def prose_passages() -> list[str]:
    """The shipped prose, a passage per paragraph: perplexity on it is a guard."""
    files = sorted((resources.files("model") / "starter" / "prose").iterdir(), key=lambda each: each.name)
    texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".txt")]
    return [passage for text in texts for passage in _split(text)]


def anchor_prose() -> list[str]:
    """Other shipped prose, which a successor is anchored on; none of it is a guard's."""
    return _split((resources.files("model") / "starter" / "anchor_prose.txt").read_text(encoding="utf-8"))


def _split(text: str) -> list[str]:
    return [passage.strip() for passage in text.split("\n\n") if passage.strip()]


def replay_prompts() -> list[str]:
    """General prompts of many kinds, one a line; none of them is a guard's."""
    text = (resources.files("model") / "starter" / "replay_prompts.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
