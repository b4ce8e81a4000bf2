"""The surveyor: what a measured weakness probably comes from, and what to try; a title and a hypothesis in words.

The model chooses a cause and a remedy from closed lists, under a grammar.  Every number in the text is put in by code
from the measured figures, so none can be invented.  Without a reading the text says what was measured and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.ask import draw_json, role_prompt
from agents.record import Recorder
from model.items import Message, Part, user
from model.language_model import LanguageModel

ROLE = "surveyor"

EVAL_CAUSES = {
    "skill": "it gets the task itself wrong",
    "format": "the answers are there but not in the form that is asked for",
    "length": "it stops too early or talks past the answer",
    "instruction": "it does not take up what the question asks",
}
EVAL_REMEDIES = {
    "verified_answers": "training on verified answers to fresh problems of this kind",
    "own_right_answers": "training on its own answers that were verified as right",
    "short_answers": "training on verified answers that are short and in the form asked for",
}
KERNEL_CAUSES = {
    "tile": "the tile does not fit the row",
    "occupancy": "too few warps are resident to hide the latency of memory",
    "rereads": "rows are read more than once",
    "pipeline": "loads and arithmetic do not overlap",
}
KERNEL_REMEDIES = {
    "other_tile": "another tile",
    "other_warps": "another number of warps",
    "other_loop": "another loop form",
    "other_stages": "another number of stages",
}


@dataclass(frozen=True)
class Reading:
    """What the model made of the figures. ``model_call_id`` is its record."""

    cause: str
    remedy: str
    model_call_id: int


def read_weakness(
    model: LanguageModel, figures: Mapping[str, Any], recorder: Recorder, seed: int, *, kind: str = "eval"
) -> Reading | None:
    """Ask the model for a cause and a remedy; None when it gave no usable reply (recorded as failed).

    ``figures`` are a survey row (``kind`` "eval") or the predicted terms of a cell (``kind`` "kernel").
    """
    causes, remedies = _lists(kind)
    schema = {
        "type": "object",
        "properties": {"cause": {"enum": list(causes)}, "remedy": {"enum": list(remedies)}},
        "required": ["cause", "remedy"],
        "additionalProperties": False,
    }
    choices = [f"Causes: {_choices(causes)}.", f"Remedies: {_choices(remedies)}."]
    question = "\n".join([_measured(figures, kind), *choices, "Name the cause and the remedy."])
    conversation = [Message("system", (Part("text", role_prompt(ROLE)),)), user(question)]
    drawn = draw_json(recorder, model, conversation, schema, count=1, temperature=0.0, seed=seed)
    if not drawn.values:
        return None
    return Reading(drawn.values[0]["cause"], drawn.values[0]["remedy"], drawn.call_id)


def describe_weakness(
    figures: Mapping[str, Any], reading: Reading | None = None, *, kind: str = "eval"
) -> tuple[str, str]:
    """(title, hypothesis) of a project that mends the weakness."""
    causes, remedies = _lists(kind)
    name = str(figures.get("title") or figures.get("family") or figures.get("name") or "this")
    title = f"{'Speed up' if kind == 'kernel' else 'Learn'} {name[:1].lower() + name[1:] if kind == 'eval' else name}"
    hypothesis = _measured(figures, kind)
    if reading is not None:
        hypothesis += f" Probably {causes[reading.cause]}; to try: {remedies[reading.remedy]}."
    return title[:120], hypothesis


def _lists(kind: str) -> tuple[dict[str, str], dict[str, str]]:
    if kind == "eval":
        return EVAL_CAUSES, EVAL_REMEDIES
    if kind == "kernel":
        return KERNEL_CAUSES, KERNEL_REMEDIES
    raise ValueError(f"kind is eval or kernel, not {kind!r}")


def _choices(words: Mapping[str, str]) -> str:
    return "; ".join(f"{word} ({meaning})" for word, meaning in words.items())


def _measured(figures: Mapping[str, Any], kind: str) -> str:
    """One sentence of numbers, all from ``figures``."""
    if kind == "kernel":
        terms = ", ".join(
            f"{name} {_figure(value)}" for name, value in figures.items() if name not in ("name", "title")
        )
        return f"{figures.get('name', 'The kernel')}: predicted {terms}."
    name = figures.get("family") or figures.get("name") or figures.get("title")
    text = f"{name}: {figures['strict']:.1%} right (standard error {figures['stderr']:.1%}) on {figures['n']} items"
    if "lenient" in figures:
        text += f", {figures['lenient']:.1%} with partial credit"
    return text + "."


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)
