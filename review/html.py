"""The report as one self-contained HTML file: no network, no script, light and dark, made for reading and printing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from review import words
from review.facts import Patch, Report

TEMPLATES = Path(__file__).parent / "templates"
HEADLINES = {"promote": "Promote", "hold": "Hold", "undecided": "No decision"}
TONES = {"better": "good", "non-inferior": "good", "worse": "bad", "inconclusive": "warn"}
LOSS_ROWS = 25


@cache
def environment() -> Environment:
    """Jinja with escaping everywhere; undefined names are errors."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=False
    )
    made.globals.update(
        value_of=words.value_of,
        name_of=words.name_of,
        difference_of=words.difference_of,
        interval_of=words.interval_of,
        margin_of=words.margin_of,
        p_value=words.p_value,
        percent=words.percent,
        count=words.count,
        duration=words.duration,
        microseconds=words.microseconds,
        spent=words.spent,
        spend_names=words.SPEND_NAMES,
        gain_of=gain_of,
        tone=lambda outcome: TONES.get(outcome, ""),
    )
    return made


def render(template: str, **values: Any) -> str:
    """One page; ``links`` is true only for pages that a server gives out."""
    return environment().get_template(template).render({"links": False, **values})


def report_page(report: Report, *, links: bool = False) -> str:
    """The whole report as an HTML document."""
    return render(
        "report.html",
        links=links,
        r=report,
        word=headline(report),
        when=when(report),
        next_step=_split_command(report.decision.next_step),
        glance=glance(report),
        plots=_plots(report),
        tests=_tests(report),
        beside=_beside(report),
        next_run=next_run_words(report.tonight.cron, report.tonight.next_run),
        candidate_count=words.plural(sum(len(c.candidates) for c in report.cells), "candidate"),
        loss_table=thin(report.training.loss_curve, LOSS_ROWS),
    )


def headline(report: Report) -> str:
    """Promote, Hold or No decision; a night that has not ended says so."""
    if report.decision.headline == "undecided" and report.status == "running":
        return "Still running"
    return HEADLINES[report.decision.headline]


def when(report: Report) -> str:
    if report.started_at is None:
        return ""
    start = report.started_at.strftime("%a %d %b %Y, %H:%M")
    return f"{start}\u2013{report.ended_at:%H:%M} UTC" if report.ended_at else f"since {start} UTC"


def next_run_words(cron: str, moment: datetime | None) -> str:
    if not cron:
        return "not scheduled (set [schedule] cron and run: nightshift serve)"
    return f"{moment:%a %d %b, %H:%M} UTC ({cron})" if moment else f"the schedule {cron!r} never matches"


def gain_of(patch: Patch) -> str:
    """Predicted saving; once measured, the measured ratio stands instead."""
    if patch.measured_ratio is not None:
        return f"measured {1 / patch.measured_ratio:.2f}\u00d7"
    return (
        "\u2013" if patch.gain is None else f"{words.MINUS if patch.gain > 0 else '+'}{abs(100 * patch.gain):.0f}% time"
    )


def glance(report: Report) -> list[tuple[str, str, str]]:
    """The four figures that one sees first: (name, value, note)."""
    decision, found = report.decision, []
    if decision.targets:
        target = decision.targets[0]
        values = f"{words.value_of(target, target.parent)} \u2192 {words.value_of(target, target.successor)}"
        found.append((target.eval, values, f"{words.interval_of(target)}, n = {target.n}"))
        guards = decision.guards
        held = sum(g.outcome in ("better", "non-inferior") for g in guards)
        counting = sum(k.counts for k in decision.kinds)
        note = f"{counting} of {words.plural(len(decision.kinds), 'kind')} count" if decision.kinds else ""
        found.append(("Guards held", f"{held} of {len(guards)}", note))
    waiting = [p for p in report.patches if p.status == "awaiting_review"]
    best = max((p.gain for p in waiting if p.gain is not None), default=None)
    note = f"best {words.percent(best, 0)} less time, predicted" if best is not None else ""
    found.append(("Patches waiting", str(len(waiting)), note))
    wall = next((s for s in report.spend if s.name == "wall_s"), None)
    if wall is not None:
        found.append(("Wall clock", words.duration(wall.used), f"of {words.duration(wall.cap)}" if wall.cap else ""))
    return found


def thin(rows: Sequence[Any], limit: int) -> list[Any]:
    """At most ``limit`` rows, evenly chosen, the last one always among them."""
    if len(rows) <= limit:
        return list(rows)
    last = len(rows) - 1
    return [rows[round(i * last / (limit - 1))] for i in range(limit)]


def _tests(report: Report) -> str:
    tests = sorted({c.test for c in report.decision.claims if c.test})
    note = "p of a target is Holm-adjusted; p of a guard is of its being within the margin."
    return f"{note} Tests: {', '.join(tests)}." if tests else ""


def _beside(report: Report) -> str:
    """Claims in other units, which the plot of shares leaves out."""
    others = [c for c in report.decision.claims if not c.is_share]
    named = [(c, f"{words.value_of(c, c.parent)} \u2192 {words.value_of(c, c.successor)}") for c in others]
    return "".join(f" {words.sentence_case(words.name_of(c))} {values} ({c.outcome})." for c, values in named)


def _split_command(step: str) -> tuple[str, str]:
    """("Look at it:", "nightshift review show 3"), or (the sentence, "")."""
    before, found, command = step.partition(": nightshift ")
    return (f"{before}:", f"nightshift {command}") if found else (step, "")


def _plots(report: Report) -> dict[str, Markup]:
    """Every plot that has something to show."""
    from review import plots

    wanted: dict[str, tuple[bool, Callable[[], str]]] = {
        "scores": (
            any(c.is_share for c in report.decision.claims),
            lambda: plots.eval_scores(report.decision.claims, report.decision.kinds),
        ),
        "times": (any(c.incumbent_us and c.best_us for c in report.cells), lambda: plots.predicted_times(report.cells)),
        "survey": (bool(report.survey), lambda: plots.survey_scores(report.survey)),
        "loss": (bool(report.training.loss_curve), lambda: plots.loss_curve(report.training.loss_curve)),
    }
    # our own SVG; every text in it is escaped by matplotlib or by us
    return {name: Markup(draw()) if shown else Markup("") for name, (shown, draw) in wanted.items()}  # noqa: S704
