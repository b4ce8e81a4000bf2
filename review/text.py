"""The report in the terminal: the same order and the same words as the page, in as few lines as it takes."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from review import words
from review.facts import Report
from review.html import gain_of, headline, next_run_words, when

STYLES = {"promote": "bold green", "hold": "bold yellow", "undecided": "bold"}
TONES = {"good": "green", "warn": "yellow", "bad": "red", "note": "dim"}
OUTCOMES = {"better": "green", "non-inferior": "green", "worse": "red", "inconclusive": "yellow"}
BAR_CELLS = 24


def print_report(report: Report, console: Console) -> None:
    """Print the whole report. Colours only where the console has them (``NO_COLOR`` is rich's own)."""
    state = "" if report.status == "done" else f" \u00b7 {report.status}"
    console.print(Text(f"{report.lab} \u00b7 night {report.night} \u00b7 {when(report)}{state}", style="dim"))
    console.print()
    _decision(report, console)
    _patches(report, console)
    _spend(report, console)
    _flags(report, console)
    _incidents(report, console)
    _tonight(report, console)


def _head(console: Console, title: str, aside: str = "") -> None:
    console.print()
    console.print(Text.assemble((title, "bold"), (f"  {aside}" if aside else "", "dim")))


def _body(console: Console, thing: Text | Table) -> None:
    console.print(Padding(thing, (0, 0, 0, 2)))


def table(*columns: str) -> Table:
    """A quiet table; a column named with a leading ``>`` is right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in columns:
        made.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    return made


def _decision(report: Report, console: Console) -> None:
    decision = report.decision
    console.print(Text(headline(report), style=STYLES[decision.headline]))
    console.print(Text(decision.sentence))
    for line in decision.would_have_taken:
        _body(console, Text(f"\u2022 {line}", style="dim"))
    console.print(Text(decision.next_step, style="dim"))
    if not decision.claims:
        return
    console.print()
    grid = table("Eval", "Role", ">n", ">Parent", ">Successor", ">Difference", ">95% interval", ">p", "Outcome")
    for c in decision.claims:
        p = c.p_holm if c.p_holm is not None else c.p
        outcome = Text(c.outcome, style=OUTCOMES.get(c.outcome, ""))
        grid.add_row(
            words.name_of(c),
            c.role,
            str(c.n),
            words.value_of(c, c.parent),
            words.value_of(c, c.successor),
            words.difference_of(c),
            words.interval_of(c),
            words.p_value(p),
            outcome,
        )
    _body(console, grid)


def _patches(report: Report, console: Console) -> None:
    _head(console, "Patches to review", "by predicted gain: prediction, unmeasured")
    if not report.patches:
        return _body(console, Text("No patch waits for a review.", style="dim"))
    grid = table(">ID", "Patch", ">Predicted gain", ">Incumbent", ">Candidate", "Evidence", "State")
    for p in report.patches:
        grid.add_row(
            p.proposal_id,
            p.title,
            gain_of(p),
            words.microseconds(p.incumbent_us),
            words.microseconds(p.predicted_us),
            p.level or "none",
            p.status.replace("_", " "),
        )
    return _body(console, grid)


def _spend(report: Report, console: Console) -> None:
    _head(console, "Spend against cap")
    grid = table("", ">Spent", ">Cap", ">", "")
    for s in report.spend:
        share = "" if s.share is None else words.percent(s.share, 0)
        filled = 0 if s.share is None else min(BAR_CELLS, round(BAR_CELLS * s.share))
        bar = Text("\u2501" * filled, style="red" if (s.share or 0) > 1 else "green")
        if s.share is not None:
            bar.append("\u2501" * (BAR_CELLS - filled), style="bright_black")
        grid.add_row(words.SPEND_NAMES[s.name], words.spent(s.name, s.used), words.spent(s.name, s.cap), share, bar)
    _body(console, grid)


def _flags(report: Report, console: Console) -> None:
    _head(console, "Integrity flags")
    for flag in report.flags:
        _body(console, Text.assemble(("\u2022 ", TONES[flag.tone]), flag.text))
    if not report.flags:
        _body(console, Text("None.", style="dim"))


def _incidents(report: Report, console: Console) -> None:
    _head(console, "Crashed, hung or resumed")
    for i in report.incidents:
        status = "" if i.status == "logged" else f" {i.status.replace('_', ' ')}"
        _body(console, Text(f"\u2022 {i.what}{status}: {i.detail}"))
    if not report.incidents:
        _body(console, Text("Nothing.", style="dim"))


def _tonight(report: Report, console: Console) -> None:
    tonight = report.tonight
    _head(console, "Tonight", next_run_words(tonight.cron, tonight.next_run))
    if tonight.model:
        _body(console, Text(f"Model: {tonight.model}"))
    for number, title in enumerate(tonight.queue, 1):
        _body(console, Text(f"{number}. {title}"))
    if not tonight.queue:
        _body(console, Text("No project waits; the survey decides.", style="dim"))
    if tonight.note:
        _body(console, Text(tonight.note, style="dim"))
