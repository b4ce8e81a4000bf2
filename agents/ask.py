"""Asking a model for JSON on the record: drawn under a grammar, or ranked by likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.record import Outcome, Recorder, messages_json
from model.items import Message
from model.language_model import LanguageModel
from model.structured import MAX_ATTEMPTS, canonical_json, longest_json_bytes, propose_json, score_json


@dataclass(frozen=True)
class Drawn:
    """What a model filled in, in the order of the draws; failed replies are left out. ``call_id`` is the record."""

    values: list[dict[str, Any]]
    call_id: int


@dataclass(frozen=True)
class Ranked:
    """Log-likelihoods of the given values, in their order."""

    scores: list[float]
    call_id: int


def role_prompt(role: str) -> str:
    """The fixed part of a role's instructions (``agents/roles/ROLE.md``)."""
    return (Path(__file__).parent / "roles" / f"{role}.md").read_text(encoding="utf-8").strip()


def draw_json(
    recorder: Recorder,
    model: LanguageModel,
    conversation: Sequence[Message],
    schema: Mapping[str, Any],
    *,
    count: int,
    temperature: float,
    seed: int,
    max_new_tokens: int | None = None,
) -> Drawn:
    """``count`` replies to one conversation. No usable reply at all is a failed call and an empty list."""
    request = {
        "kind": "draw",
        "messages": messages_json(conversation),
        "schema": schema,
        "count": count,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
    }

    def work() -> Outcome:
        replies = propose_json(
            model, [conversation] * count, schema, temperature=temperature, seed=seed, max_new_tokens=max_new_tokens
        )
        failures = [reply.failure for reply in replies if reply.failure]
        return Outcome(
            {
                "values": [reply.value for reply in replies if not reply.failure],
                "failed": [{"failure": reply.failure, "text": reply.text} for reply in replies if reply.failure],
            },
            tokens_in=sum(reply.tokens_in for reply in replies),
            tokens_out=sum(reply.tokens_out for reply in replies),
            error=f"all {count} replies failed: {', '.join(sorted(set(failures)))}" if len(failures) == count else "",
        )

    longest = longest_json_bytes(schema) + 1
    reply_tokens = longest if max_new_tokens is None else min(longest, max_new_tokens)
    most = count * MAX_ATTEMPTS * (len(model.encode(conversation)) + reply_tokens)
    call = recorder.call(request, work, seed=seed, max_tokens=most)
    return Drawn(call.reply["values"], call.id)


def rank_json(
    recorder: Recorder,
    model: LanguageModel,
    conversation: Sequence[Message],
    values: Sequence[Mapping[str, Any]],
    *,
    seed: int,
) -> Ranked:
    """The model's log-likelihood of each value as its reply, among these values."""
    # spelled out: a document with sorted keys would lose their order, which the likelihood depends on
    request = {
        "kind": "rank",
        "messages": messages_json(conversation),
        "values": [canonical_json(value) for value in values],
    }

    def work() -> Outcome:
        scores, tokens = score_json(model, conversation, values)
        return Outcome({"scores": scores}, tokens_in=tokens, tokens_out=0)

    most = len(model.encode(conversation)) + sum(len(canonical_json(value).encode()) for value in values)
    call = recorder.call(request, work, seed=seed, max_tokens=most)
    return Ranked(call.reply["scores"], call.id)
