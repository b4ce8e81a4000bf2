"""``nightshift kernel``: tasks, the judge, the candidate language, predictions, and the judge's own test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.common import EXIT_NEGATIVE, JsonOption, emit, note, open_lab, progress, table
from cli.durations import seconds
from workspace.errors import SurroundingsError, UserError

if TYPE_CHECKING:
    from kernels.judge import CheckResult, Judge
    from kernels.task import Task
    from workspace.lab import Lab
    from workspace.sandbox import Sandboxes

app = typer.Typer(help="Kernel tasks, the judge, and the language candidates are written in.", no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A task of the lab.")]
SandboxOption = Annotated[
    Literal["docker", "process"],
    typer.Option("--sandbox", help="`process` has no container around it: for your own code only."),
]
PROCESS_WARNING = (
    "--sandbox process: limits and a system call filter, no container. It does not protect files that you can read, "
    "memory of this machine, or what the language lets through by mistake; use it for your own code only."
)
MAX_FILE_BYTES = 1 << 20


def _tasks(lab: Lab) -> dict[str, Task]:
    from kernels.library import load_tasks

    return load_tasks(lab.root / "kernels")


def _task(lab: Lab, name: str) -> Task:
    from kernels.library import load_task

    folders = sorted(path.parent.name for path in (lab.root / "kernels").glob("*/task.py"))
    if name not in folders:
        raise UserError("no such kernel task", field="NAME", value=name, allowed=", ".join(folders) or "none yet")
    return load_task(lab.root / "kernels" / name)


@contextmanager
def _judge(lab: Lab | None, sandbox: str, **options: Any) -> Iterator[Judge]:
    """A judge in the lab's sandboxes; SurroundingsError when there is no engine."""
    from kernels.judge import Judge

    targets = list(lab.settings.kernels.targets) if lab is not None else ["sm_80", "sm_90"]
    secret = lab.secret("kernel-judge") if lab is not None else b"self-test"
    if sandbox == "process":
        note(PROCESS_WARNING)
        with Judge(secret, None, targets, **options) as judge:
            yield judge
        return
    with _sandboxes(lab) as sandboxes:
        sandboxes.check()
        with Judge(secret, sandboxes, targets, **options) as judge:
            yield judge


def _sandboxes(lab: Lab | None) -> Sandboxes:
    from workspace.sandbox import Sandboxes
    from workspace.sandbox_settings import SandboxSettings

    if lab is None:
        return Sandboxes(SandboxSettings(), "self-test")
    return Sandboxes(lab.settings.sandbox, lab.lab_id, lab.state / "scratch")


@app.command("list")
def list_tasks(as_json: JsonOption = False) -> None:
    """The lab's kernel tasks."""
    lab = open_lab()
    rows = [
        {
            "name": task.name,
            "title": task.title,
            "host": task.host,
            "shapes": {label: list(shape) for label, (shape, _) in task.bench_shapes.items()},
        }
        for task in _tasks(lab).values()
    ]

    def text() -> str:
        cells = [[row["name"], row["title"], ", ".join(row["shapes"])] for row in rows]
        return table(("task", "what it is", "real-model shapes"), cells)

    emit({"tasks": rows}, as_json, text)


@app.command()
def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """One task: equation, arguments, shapes with their sources, and the schedules of the current best."""
    from kernels.library import incumbent
    from kernels.space import ScheduleTableError, parse_schedules

    lab = open_lab()
    task = _task(lab, name)
    source = incumbent(lab.root / "kernels", name)
    cells: list[dict[str, Any]] = []
    with suppress(ScheduleTableError):
        cells = [
            {"target": target, "size": size, "schedule": cell.schedule, "source": cell.source}
            for (target, size), cell in parse_schedules(source).items()
        ]
    document = {
        "name": task.name,
        "title": task.title,
        "equation": task.equation,
        "source": task.source,
        "host": task.host,
        "arguments": [{"name": a.name, "kind": a.kind} for a in task.arguments],
        "dtypes": list(task.dtypes),
        "shapes": [list(shape) for shape in task.shapes],
        "bench_shapes": {label: {"shape": list(s), "source": why} for label, (s, why) in task.bench_shapes.items()},
        "wrong_answers": [wrong.name for wrong in task.wrong],
        "schedules": cells,
    }

    def text() -> str:
        head = f"{task.title}\n{task.equation}\n{task.source}\n"
        signature = f"{task.host}({', '.join(a.name for a in task.arguments)})   dtypes: {', '.join(task.dtypes)}\n"
        shapes = table(("shape", "label", "source"), [[s, k, why] for k, (s, why) in task.bench_shapes.items()])
        rows = [
            [c["target"], c["size"], " ".join(f"{k}={v}" for k, v in c["schedule"].items()), c["source"]] for c in cells
        ]
        return f"{head}{signature}\n{shapes}\n\n{table(('target', 'size', 'schedule', 'from'), rows)}"

    emit(document, as_json, text)


def _candidate(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError("the file is too large", field="--candidate", value=str(path), allowed="up to 1 MB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError("there is no such file", field="--candidate", value=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", field="--candidate", value=str(path)) from None


@app.command()
def check(
    name: NameArgument,
    candidate: Annotated[Path, typer.Option("--candidate", metavar="FILE", help="The candidate's source.")],
    as_json: JsonOption = False,
    sanitize_only: Annotated[
        bool, typer.Option("--sanitize-only", help="Memory and order only: no comparison, no compilation.")
    ] = False,
    profile: Annotated[Literal["full", "smoke"], typer.Option(help="How many calls are judged.")] = "full",
    sandbox: SandboxOption = "docker",
) -> None:
    """Is this Triton kernel right? Exit 0 accepted, 1 rejected, 3 when the judge could not decide."""
    lab = open_lab()
    task = _task(lab, name)
    source = _candidate(candidate)
    with _judge(lab, sandbox) as judge:
        result = judge.check(task, source, profile=profile, sanitize_only=sanitize_only)
    emit(result.to_json(), as_json, lambda: _verdict_text(result))
    if result.verdict == "error":
        raise SurroundingsError(result.reasons[0].detail, remedy="nightshift doctor")
    if not result.accepted:
        raise typer.Exit(EXIT_NEGATIVE)


def _verdict_text(result: CheckResult) -> str:
    level, name = result.level or "not parsed", result.candidate_sha256[:12]
    lines = [f"{result.verdict} ({level}) in {result.wall_s:.2f} s   sha256 {name}"]
    lines += [f"  {reason.code}  {reason.where}  {reason.detail}" for reason in result.reasons]
    if result.correctness:
        worst = [
            ["held out" if e["held_out"] else e["shape"], e["dtype"], e["relative_error"], e["budget"]]
            for e in result.correctness
        ]
        lines.append(table(("shape", "dtype", "relative error", "budget"), worst))
    if result.cells:
        lines.append(_cells_text(result.cells))
    lines += [f"note: {text}" for text in result.notes]
    return "\n".join(lines)


def _cells_text(cells: list[dict[str, Any]]) -> str:
    rows = []
    for cell in cells:
        used, predicted = cell["resources"], cell.get("predicted") or {}
        rows.append(
            [
                cell["target"], cell["size"], used["registers"], used["spill_bytes"], used["shared_bytes"],
                used["instructions"], _us(predicted.get("time_us")), _us(predicted.get("floor_us")),
            ]
        )  # fmt: skip
    return table(
        ("target", "size", "registers", "spilled B", "shared B", "instructions", "predicted us", "floor us"), rows
    )


def _us(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


@app.command()
def language(as_json: JsonOption = False) -> None:
    """The candidate language and the reason codes, as a proposing model is shown them."""
    from kernels.language import describe
    from kernels.reasons import CODES

    emit({"language": describe(), "reasons": CODES}, as_json, describe)


@app.command("self-test")
def self_test(
    as_json: JsonOption = False,
    sandbox: SandboxOption = "docker",
    without_gate: Annotated[
        bool, typer.Option("--without-gate", help="Switch the language check off: the other walls must hold alone.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--recertify", help="Then judge the lab's winners again that another judge accepted.")
    ] = False,
) -> None:
    """Run every seeded cheat and honest kernel against the installed judge; exit 1 if one gets through."""
    from flows.certify import record
    from kernels.judge import judge_sha256
    from kernels.self_test import run_self_test, trials

    lab = None
    with suppress(UserError):
        lab = open_lab()
    if again and lab is None:
        lab = open_lab()  # says what is missing
    started = time.monotonic()
    outcomes = []
    with (
        _judge(lab, sandbox, gate=not without_gate, compile_candidates=False) as judge,
        progress("self-test", len(trials())) as step,
    ):
        for outcome in run_self_test(judge, gate=not without_gate):
            outcomes.append(outcome)
            step(len(outcomes), text=outcome.name)
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if lab is not None and sandbox == "docker" and not without_gate:
        record(lab, outcomes)
    judged = _recertified(lab, sandbox) if again and lab is not None and not failed else []
    fallen = [row for row in judged if row["verdict"] != "accepted"]
    document = {
        "judge": f"sha256:{judge_sha256()}",
        "gate": not without_gate,
        "passed": not failed,
        "outcomes": [outcome.to_json() for outcome in outcomes],
        **({"recertified": judged} if again else {}),
        "wall_s": round(time.monotonic() - started, 2),
    }
    emit(document, as_json, lambda: _self_test_text(document, again))
    if failed or fallen:
        raise typer.Exit(EXIT_NEGATIVE)


def _recertified(lab: Lab, sandbox: str) -> list[dict[str, Any]]:
    """The lab's stale winners, judged in full."""
    from flows.certify import recertify, stale_winners

    rows: list[dict[str, Any]] = []
    with _judge(lab, sandbox) as judge, progress("recertify", len(stale_winners(lab))) as step:
        for row in recertify(lab, judge):
            rows.append(row.to_json())
            step(len(rows), text=row.task)
    return rows


def _self_test_text(document: dict[str, Any], again: bool) -> str:
    rows = [
        [
            "ok" if row["passed"] else "FAILED", row["name"], ", ".join(row["codes"]) or row["verdict"],
            ", ".join(row["expected"]) or "accepted",
        ]
        for row in document["outcomes"]
    ]  # fmt: skip
    good = sum(row["passed"] for row in document["outcomes"])
    lines = [table(("", "candidate", "judged", "expected"), rows)]
    lines.append(f"{good} of {len(rows)} as they should be, {document['wall_s']} s")
    if again and document["passed"]:
        winners = [
            [row["proposal"], row["task"], row["status"], row["was"], row["verdict"], ", ".join(row["codes"])]
            for row in document["recertified"]
        ]
        lines.append(
            table(("proposal", "task", "state", "was", "is", "reasons"), winners)
            if winners
            else "every winner has a verdict of this judge"
        )
    return "\n".join(lines)


@app.command()
def bench(name: NameArgument, as_json: JsonOption = False, sandbox: SandboxOption = "docker") -> None:
    """Resources and predicted time of the current best at every real-model size. A prediction is no measurement."""
    from kernels.library import incumbent

    lab = open_lab()
    task = _task(lab, name)
    with _judge(lab, sandbox) as judge:
        result = judge.check(task, incumbent(lab.root / "kernels", name), profile="smoke")
    document = {"task": name, "verdict": result.verdict, "cells": result.cells, "measured": None}
    emit(document, as_json, lambda: _cells_text(result.cells) if result.cells else _verdict_text(result))
    if not result.accepted:
        raise typer.Exit(EXIT_NEGATIVE)


@app.command()
def optimize(
    name: NameArgument,
    candidates: Annotated[int, typer.Option("--candidates", min=1, max=1000, help="How many are proposed.")] = 8,
    budget: Annotated[str | None, typer.Option(help="Wall clock, e.g. 15m; else the settings'.")] = None,
    profile: Annotated[str, typer.Option(help="Settings profile, e.g. smoke.")] = "default",
    as_json: JsonOption = False,
) -> None:
    """Propose and judge schedules of one task now: a night of nothing else. The best waits for review."""
    from cli.night import carry
    from flows.errand import optimize as errand

    lab = open_lab(None, profile)
    _task(lab, name)
    budget_s = seconds(budget, "--budget") if budget else None
    carry(lab, as_json, budget_s=budget_s, errand=errand(name, candidates), again=f"nightshift kernel optimize {name}")
