"""`nightshift review …`: the queue of patches and successors, the decisions about them, and their merge."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cli.common import JsonOption, LabOption, YesOption, ask, emit_json, open_lab, say, table

if TYPE_CHECKING:
    from review.items import Item

app = typer.Typer(help="Look at what waits for a person, decide, merge.", no_args_is_help=True)
IdArgument = Annotated[int, typer.Argument(metavar="ID", help="Number of the proposal.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept with the decision.")]


@app.command("list")
def list_(
    everything: Annotated[bool, typer.Option("--all", help="Also what is decided.")] = False,
    as_json: JsonOption = False,
    lab: LabOption = None,
) -> None:
    """The queue: successors first, then patches by predicted gain."""
    from review.items import list_items
    from review.words import short

    items = list_items(open_lab(lab), everything=everything)
    if as_json:
        return emit_json([item.to_json() for item in items])
    if not items:
        return say("Nothing waits for a review.")
    rows = [
        (i.id, i.title, i.level or i.verdict, brief(i), short(i.judge), i.status.replace("_", " ") + flags_of(i))
        for i in items
    ]
    return say(table(("ID", "Proposal", "Evidence", "Figures", "Judge", "State"), rows))


@app.command("show")
def show(number: IdArgument, as_json: JsonOption = False, lab: LabOption = None) -> None:
    """One proposal: figures, evidence level, judge, diff stat, trailers and earlier decisions."""
    from review.items import show_item

    _tell(show_item(open_lab(lab), number), as_json)


@app.command("diff")
def diff(number: IdArgument, as_json: JsonOption = False, lab: LabOption = None) -> None:
    """The unified diff of a patch."""
    import sys

    from review.items import diff_of, show_item

    here = open_lab(lab)
    text = diff_of(here, number)
    if as_json:
        item = show_item(here, number)
        return emit_json({"id": item.id, "base": item.base, "head": item.tip, "diff": text})
    if not sys.stdout.isatty():
        return say(text)
    from rich.console import Console
    from rich.syntax import Syntax

    return Console().print(Syntax(text, "diff", background_color="default"))


@app.command("approve")
def approve(number: IdArgument, reason: ReasonOption = "", as_json: JsonOption = False, lab: LabOption = None) -> None:
    """Approve a proposal as it stands now (its commit or checkpoint); merging is the next step."""
    from review import queue

    _tell(queue.approve(open_lab(lab), number, reason), as_json, f"Approved. Next: nightshift review merge {number}")


@app.command("reject")
def reject(number: IdArgument, reason: ReasonOption, as_json: JsonOption = False, lab: LabOption = None) -> None:
    """Refuse a proposal for good."""
    from review import queue

    _tell(queue.reject(open_lab(lab), number, reason), as_json, "Rejected.")


@app.command("request-changes")
def request_changes(
    number: IdArgument, reason: ReasonOption, as_json: JsonOption = False, lab: LabOption = None
) -> None:
    """Give a proposal back to its author."""
    from review import queue

    _tell(queue.request_changes(open_lab(lab), number, reason), as_json, "Changes requested.")


@app.command("merge")
def merge(
    number: IdArgument,
    accept_unmeasured: Annotated[
        bool, typer.Option("--accept-unmeasured", help="Merge a patch that no GPU has timed; stays in its trailer.")
    ] = False,
    override: Annotated[
        bool, typer.Option("--override", help="Promote against the verdict; needs --reason, flagged for ever.")
    ] = False,
    reason: ReasonOption = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
    lab: LabOption = None,
) -> None:
    """Put an approved proposal into effect: merge its branch, or make the successor the next night's model."""
    from review import queue

    here = open_lab(lab)
    item = queue.check_merge(here, number, accept_unmeasured=accept_unmeasured, override=override, reason=reason)
    if item.status == "approved":
        ask(queue.merge_question(item), yes=yes)
    merged = queue.merge(here, number, accept_unmeasured=accept_unmeasured, override=override, reason=reason)
    if as_json:
        return emit_json(asdict(merged))
    what = (
        f"{merged.checkpoint} is the model of the next night"
        if merged.checkpoint
        else f"merged as {merged.commit[:12]}"
    )
    say(f"Proposal {number}: {'already merged, ' if merged.effect == 'already merged' else ''}{what}.")
    if merged.repaired:
        say("The merge had been interrupted after its effect; its record is now complete.")
    for other in merged.superseded:
        say(f"Proposal {other} is superseded.")
    for flag in merged.flags:
        say(f"Flagged: {flag}.")
    return None


def flags_of(item: Item) -> str:
    return f" [{', '.join(item.flags)}]" if item.flags else ""


def brief(item: Item) -> str:
    """The figures in a few words, for one line of a table."""
    from review.words import difference_of

    if item.decision is not None and item.decision.targets:
        target = item.decision.targets[0]
        return f"{target.eval} {difference_of(target)} points, {len(item.decision.guards)} guards"
    return item.figures


def _tell(item: Item, as_json: bool, last: str = "") -> None:
    """One proposal on standard output."""
    if as_json:
        return emit_json(item.to_json())
    from review.pages import facts_of

    say(f"Proposal {item.id}: {item.title}")
    say(f"  {item.status.replace('_', ' ')}{flags_of(item)}")
    if item.figures:
        say(f"  {item.figures}")
    for name, value in facts_of(item):
        say(f"  {name + ':':<12}{value}")
    for path, (added, removed) in item.diff_stat.items():
        say(f"  {'Changes:':<12}{path} +{added} \u2212{removed}")
    for name, value in item.trailers.items():
        say(f"  {name}: {value}")
    for r in item.reviews:
        say(f"  {r.at} {r.decision.replace('_', ' ')} by {r.reviewer}{': ' + r.reason if r.reason else ''}")
    return say(last) if last else None
