"""`nightshift project …`: what people want worked on; the next night takes it before the model's own ideas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.common import JsonOption, LabOption, emit_json, note, open_lab, progress, say, table
from cli.durations import seconds

if TYPE_CHECKING:
    from flows.projects import ProjectView

app = typer.Typer(help="Propose a project, join one, ship what works.", no_args_is_help=True)
IdArgument = Annotated[int, typer.Argument(metavar="ID", help="Number of the project.")]


@app.command("propose")
def propose(
    title: Annotated[str | None, typer.Option("--title", help="One line.")] = None,
    hypothesis: Annotated[str | None, typer.Option("--hypothesis", help="What you expect to help, and why.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="kernel, data or posttrain.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="A kernel task, or a family or eval.")] = None,
    eval_file: Annotated[Path | None, typer.Option("--eval", help="An eval file that shows the weakness.")] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from", help="The same fields from a TOML or JSON file; options win.")
    ] = None,
    budget: Annotated[str | None, typer.Option("--budget", help="Wall clock over all nights, e.g. 45m.")] = None,
    as_json: JsonOption = False,
    lab: LabOption = None,
) -> None:
    """Put a project into the queue. Its owner is whoever git says you are."""
    from flows import projects

    here = open_lab(lab)
    values: dict[str, Any] = projects.read_file(from_file) if from_file is not None else {}
    typed = {
        "title": title,
        "hypothesis": hypothesis,
        "kind": kind,
        "target": target,
        "eval": eval_file,
        "budget": budget,
    }
    values |= {name: value for name, value in typed.items() if value is not None}
    length = values.pop("budget", None)
    values["budget_s"] = seconds(str(length), "--budget") if length is not None else None
    draft = projects.check_draft(here, values)
    with progress("examining the eval") as step:
        made = projects.propose(here, draft, say=note, on_progress=step)
    found = projects.view(here, made.id or 0)
    if as_json:
        return emit_json(found.to_json())
    return say(f"Project {made.id} waits for the next night.\n\n{_text(found)}")


@app.command("list")
def list_(as_json: JsonOption = False, lab: LabOption = None) -> None:
    """All projects, the live ones first."""
    from flows.projects import list_projects

    found = list_projects(open_lab(lab))
    if as_json:
        return emit_json([each.to_json() for each in found])
    if not found:
        return say("No project yet. Next: nightshift project propose --help")
    rows = [
        (p.project.id, p.project.title, p.project.kind, p.project.target, p.project.owner, p.project.status, _spent(p))
        for p in found
    ]
    return say(table(("ID", "Project", "Kind", "Target", "Owner", "Status", "Wall clock"), rows))


@app.command("show")
def show(number: IdArgument, as_json: JsonOption = False, lab: LabOption = None) -> None:
    """One project: hypothesis, members, eval, budget, proposals, feedback."""
    from flows.projects import view

    _tell(view(open_lab(lab), number), as_json)


@app.command("join")
def join(number: IdArgument, as_json: JsonOption = False, lab: LabOption = None) -> None:
    """Become a member of a project."""
    from flows import projects

    _tell(projects.join(open_lab(lab), number), as_json)


@app.command("feedback")
def feedback(
    number: IdArgument,
    text: Annotated[str, typer.Option("--text", help="What you want to say; kept with your name.")],
    as_json: JsonOption = False,
    lab: LabOption = None,
) -> None:
    """Say something about a project."""
    from flows.projects import give_feedback

    _tell(give_feedback(open_lab(lab), number, text), as_json)


@app.command("ship")
def ship(number: IdArgument, as_json: JsonOption = False, lab: LabOption = None) -> None:
    """Close a project whose proposals are merged; otherwise says what is missing."""
    from flows import projects

    _tell(projects.ship(open_lab(lab), number), as_json)


def _tell(found: ProjectView, as_json: bool) -> None:
    if as_json:
        return emit_json(found.to_json())
    return say(_text(found))


def _spent(found: ProjectView) -> str:
    line = found.budget.get("wall_s")
    spent = f"{line.spent if line else 0:.0f} s"
    cap = found.project.budget_wall_s
    return f"{spent} of {cap:.0f} s" if cap is not None else f"{spent}, no cap"


def _text(found: ProjectView) -> str:
    row = found.project
    lines = [
        f"{row.id}  {row.title}  ({row.status})",
        f"   {row.kind} on {row.target}, by {row.owner}",
        f"   hypothesis: {row.hypothesis}",
        f"   members: {', '.join(row.members) or 'none'}",
        f"   wall clock: {_spent(found)}",
    ]
    if row.eval_sha256:
        f = row.eval_figures
        lines.append(
            f"   eval {row.eval_sha256[:12]}: {f['checkpoint']} {f['strict']:.1%} of {f['n']} right, 95% interval "
            f"{f['ci95'][0]:.1%} to {f['ci95'][1]:.1%}, par {f['par']:.0%}"
        )
    lines += [f"   proposal {p.id}: {p.title} ({p.status.replace('_', ' ')})" for p in found.proposals]
    lines += [f"   {each['by']} on {each['at'][:16]}: {each['text']}" for each in found.feedback]
    return "\n".join(lines)
