"""``nightshift night``: one night now."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from cli.common import JsonOption, LabOption, emit_json, note, open_lab, say
from cli.durations import seconds
from workspace.errors import Interrupted

if TYPE_CHECKING:
    from flows.errand import Errand
    from workspace.lab import Lab


def night(
    lab: LabOption = None,
    budget: Annotated[str | None, typer.Option(help="Wall clock of the night, e.g. 15m; else the settings'.")] = None,
    only: Annotated[str | None, typer.Option(help="Comma-separated: kernels, data, posttrain.")] = None,
    profile: Annotated[str, typer.Option(help="Settings profile, e.g. smoke.")] = "default",
    as_json: JsonOption = False,
) -> None:
    """Run one night now, or go on with an unfinished one, and print the report."""
    budget_s = seconds(budget, "--budget") if budget else None
    kinds = [word.strip() for word in only.split(",") if word.strip()] if only else []
    carry(open_lab(lab, profile), as_json, budget_s=budget_s, only=kinds)


def carry(
    lab: Lab, as_json: bool, *, budget_s: float | None = None, only: list[str] | None = None,
    errand: Errand | None = None, again: str = "nightshift night",
) -> None:  # fmt: skip
    """Run a night with its progress shown, then print its document or its report. ``again`` goes on with it."""
    from flows.night import run_night

    with _Progress() as shown:
        try:
            summary = run_night(
                lab, budget_s=budget_s, only=only, errand=errand, progress=shown.step, say=shown.line,
                on_report=lambda number: _write_report(lab, number),
            )  # fmt: skip
        except KeyboardInterrupt:
            raise Interrupted("the night was interrupted", remedy=f"{again} goes on where it was") from None
    if as_json:
        emit_json(summary)
    else:
        _print_report(lab, summary)


def _write_report(lab: Lab, number: int) -> Path:
    from review.html import report_page
    from review.report import collect_report
    from workspace.files import write_atomically

    path = lab.state / "reports" / f"night-{number}.html"
    write_atomically(path, report_page(collect_report(lab, number)).encode())
    return path


def _print_report(lab: Lab, summary: dict[str, Any]) -> None:
    from rich.console import Console

    from review.report import collect_report
    from review.text import print_report

    print_report(collect_report(lab, summary["night"]), Console())
    say(f"\nThe same with plots: {summary['report']}")


class _Progress:
    """A bar over the whole night on a terminal; elsewhere a line for every step and one every ten seconds.

    The ETA weighs steps by the share that they take of a default night.
    """

    def __init__(self) -> None:
        from cli.common import progress

        self._context = progress("night", 100)
        self._begun = time.monotonic()
        self._done: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._update = self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.__exit__(kind, error, trace)

    def step(self, name: str, done: int, total: int) -> None:
        from flows.context import STEPS, WEIGHTS

        for earlier in STEPS[: STEPS.index(name)]:
            self._done[earlier] = 1.0
        self._done[name] = done / total if total else 0.0
        share = sum(WEIGHTS[step] * part for step, part in self._done.items())
        self._update(share, 100, f"{name} {done}/{total}" if total > 1 else name)

    def line(self, text: str) -> None:
        note(f"[{time.monotonic() - self._begun:5.0f} s] {text}")
