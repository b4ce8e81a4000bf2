"""Integrity flags and incidents: what a reader must know before believing the rest of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from review.facts import Decision, Flag, Incident, Patch
from review.words import plural
from workspace import tables

BELOW_MEASURED = ("parsed", "interpreted", "compiled")
SHOWN = 5
BROKEN = ("failed", "timed_out", "killed", "lost")
INCIDENT_WORDS = (*BROKEN, "resum", "crash", "reap", "hung", "timeout", "repair", "dispos")


def find_flags(
    decision: Decision,
    patches: Sequence[Patch],
    overrides: Sequence[tables.Promotion],
    names: Mapping[int, str],
    unmeasured: Sequence[tables.Proposal],
    experiments: Sequence[tables.Experiment],
    stated: Sequence[str],
) -> list[Flag]:
    """All flags, the gravest first. ``unmeasured``: merged patches without a measurement; ``stated``: the night's."""
    flags = [
        Flag("bad", f"Integrity check failed: {c.check}. {c.detail}".strip(), "integrity")
        for c in decision.integrity
        if not c.passed
    ]
    flags += [
        Flag("bad", f"{e.kind} {e.key}: a result was stored {e.finishes} times; it must be once.", "repeated")
        for e in experiments
        if e.finishes > 1
    ]
    flags += [
        Flag(
            "bad",
            f"Override: {names.get(o.checkpoint_id, o.checkpoint_id)} was promoted against its verdict "
            f"by {o.by}: {o.reason}",
            "override",
        )
        for o in overrides
    ]
    flags += [
        Flag(
            "warn",
            f"In force but unmeasured: patch {p.id} ({p.title}), evidence level {p.level or 'none'}.",
            "unmeasured",
        )
        for p in unmeasured
    ]
    waiting = [p for p in patches if p.level in BELOW_MEASURED and p.status in ("awaiting_review", "approved")]
    if waiting:
        verb = "is" if len(waiting) == 1 else "are"
        who = plural(len(waiting), "waiting patch", "waiting patches")
        text = f"{who} {verb} unmeasured: the gain is a prediction until a GPU worker times it."
        flags.append(Flag("warn", text, "unmeasured-waiting"))
    flags += [
        Flag("note", f"Guards of kind {k.kind} do not count: {k.reason}.", "guard-not-counted")
        for k in decision.kinds
        if not k.counts
    ]
    undecided = [e for e in experiments if e.kind == "kernel" and e.result.get("verdict") == "error"]
    if undecided:
        flags.append(Flag("warn", f"The judge could not decide {plural(len(undecided), 'candidate')}.", "judge-error"))
    known = {f.text for f in flags}
    return flags + [Flag("note", text, "night") for text in stated if text not in known]


def find_incidents(
    night: tables.Night, experiments: Sequence[tables.Experiment], events: Sequence[tables.Event]
) -> list[Incident]:
    """What crashed, hung, was killed or was taken up again; the log's words explain the experiments' rows."""
    found: list[Incident] = []
    if night.starts > 1:
        found.append(
            Incident(
                "the night",
                "resumed",
                f"stopped and taken up again {'once' if night.starts == 2 else str(night.starts - 1) + ' times'}",
                night.starts,
            )
        )
    told: set[int] = set()
    for e in experiments:
        own = [event for event in events if event.message == f"{e.kind}/{e.key}" and event.kind in BROKEN]
        told.update(id(event) for event in own)
        name = f"{e.kind} {e.key}" if e.key and e.key != e.kind else e.kind
        if e.status in BROKEN:
            found.append(Incident(name, e.status, _last_line(e.error), e.attempts))
        elif e.attempts > 1:
            done = "finished" if e.status == "done" else e.status
            found.append(Incident(name, "resumed", f"{_history(own)}{done} at attempt {e.attempts}", e.attempts))
    others: dict[str, list[str]] = {}
    for event in events:
        if id(event) not in told and event.kind != "resumed" and any(word in event.kind for word in INCIDENT_WORDS):
            others.setdefault(event.kind.replace("_", " "), []).append(event.message)
    return found + [Incident(kind, "logged", _shortened(messages)) for kind, messages in others.items()]


def _shortened(messages: Sequence[str]) -> str:
    shown = "; ".join(messages[:SHOWN])
    return f"{shown}; and {len(messages) - SHOWN} more" if len(messages) > SHOWN else shown


def _history(events: Sequence[tables.Event]) -> str:
    parts = []
    for event in events:
        error = str(event.data.get("error", "")).strip().splitlines()
        parts.append(f"{event.kind.replace('_', ' ')} ({error[-1][:160]})" if error else event.kind.replace("_", " "))
    return f"{', '.join(parts)}; " if parts else ""


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return lines[-1][:300] if lines else "no message was left"
