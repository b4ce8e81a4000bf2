"""One night, from taking up what a killed run left to the morning's report.

    take up → import → survey → kernels → data → posttrain → judge → report

Each step is a Prefect flow of few coarse tasks.  What a step finished is in the ledger (``workspace.experiments``), so
a night that was killed at any instant goes on where it was: finished experiments are read back, never repeated.
Prefect carries, retries and shows the work; the ledger is the source of truth.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlmodel import col, select

from flows.context import STEPS, NightRun, Progress, export_base, forget, register, running, settings_sha256
from flows.errand import Errand, refuse_other
from flows.server import prefect_server
from flows.spending import work_on
from flows.summary import summarise
from model import checkpoints
from workspace.budget import Budget, BudgetExceeded
from workspace.errors import Interrupted, NightshiftError, SurroundingsError, UserError
from workspace.experiments import reap_lost, stored_result
from workspace.fingerprint import fingerprint
from workspace.lab import Lab
from workspace.lock import exclusive
from workspace.sandbox import Sandboxes
from workspace.settings import FILE, load_settings
from workspace.tables import Event, Night, Proposal, now

if TYPE_CHECKING:
    from flows.server import Server

KINDS = ("kernels", "data", "posttrain")
MIN_FREE_BYTES = 3 * 10**9


def run_night(
    lab: Lab,
    *,
    budget_s: float | None = None,
    only: list[str] | None = None,
    errand: Errand | None = None,
    progress: Progress = lambda _step, _done, _total: None,
    say: Callable[[str], None] = lambda _line: None,
    on_report: Callable[[int], Path | None] = lambda _night: None,
) -> dict[str, Any]:
    """Run one night to its end or its budget and return the document of ``night --json``.

    Takes up an unfinished night first.  An ``errand`` is a night for one purpose.
    ``on_report(night id)`` writes the report (the review room is above this one).
    Interrupted and SurroundingsError leave the night unfinished: the next call goes on with it.
    """
    wrong = [kind for kind in only or [] if kind not in KINDS]
    if wrong:
        raise UserError("no such kind of work", field="--only", value=wrong[0], allowed=", ".join(KINDS))
    with exclusive(lab.state / "night.lock", "a night in this lab"), prefect_server() as server:
        sandboxes = Sandboxes(lab.settings.sandbox, lab.lab_id, lab.state / "scratch")
        sandboxes.check()
        _need_space(lab)
        night, settings_text, taken_up = _take_up(lab, budget_s, only or [], errand)
        run = _open_run(lab, night, settings_text, sandboxes, progress, say)
        cleaned = _clean_up(run)
        if taken_up:
            say(f"night {run.id} goes on ({night.status} at its {night.starts - 1}. start)")
            run.resumed.extend(cleaned)
        else:
            say(f"night {run.id} begins: {night.budget_wall_s:.0f} s, profile {night.profile}")
        register(run)
        try:
            status = _carry(run, server, say)
        except (KeyboardInterrupt, Interrupted):
            _close(run, "interrupted")
            raise
        except NightshiftError:
            _close(run, "interrupted")
            raise
        finally:
            forget(run)
        return _finish(run, status, on_report)


def _need_space(lab: Lab) -> None:
    free = shutil.disk_usage(lab.root).free
    if free < MIN_FREE_BYTES:
        raise SurroundingsError(
            f"{free / 1e9:.1f} GB free at {lab.root}, a night needs {MIN_FREE_BYTES / 1e9:.0f} GB",
            remedy="free some disk space; nightshift doctor shows what takes it",
        )


def _take_up(lab: Lab, budget_s: float | None, only: list[str], errand: Errand | None) -> tuple[Night, str, bool]:
    """The unfinished night, or a new one; with the text of its settings."""
    with lab.ledger.read() as session:
        unfinished = session.exec(
            select(Night).where(col(Night.status).in_(("running", "interrupted"))).order_by(col(Night.id).desc())
        ).first()
    if unfinished is not None:
        refuse_other(unfinished, errand, lab)
        with lab.ledger.write() as session:
            night = session.get_one(Night, unfinished.id)
            before = night.status
            night.status, night.starts = "running", night.starts + 1
            session.add(night)
            session.add(Event(night_id=night.id, kind="resumed", message=f"start {night.starts}", data={"was": before}))
        return night, lab.artifacts.get_bytes(night.settings_sha256).decode(), True
    text = (lab.root / FILE).read_text(encoding="utf-8")
    if errand is not None:
        text, only = errand.settings_text(text), [errand.only]
    lab.artifacts.put_bytes(text.encode(), "settings")
    head = lab.git.head()
    with lab.ledger.write() as session:
        night = Night(
            profile=errand.profile(lab) if errand else lab.profile,
            subject_id=errand.parent.id if errand and errand.parent else None,
            only=only,
            seed=str(secrets.randbits(64)),
            base_commit=head,
            settings_sha256=settings_sha256(text),
            fingerprint=fingerprint(),
            budget_wall_s=budget_s or lab.settings.budget.wall_s,
        )
        session.add(night)
        session.flush()
        session.add(Event(night_id=night.id, kind="started", message=f"profile {lab.profile}"))
    return night, text, False


def _open_run(
    lab: Lab, night: Night, settings_text: str, sandboxes: Sandboxes, progress: Progress, say: Callable[[str], None]
) -> NightRun:
    settings = load_settings(lab.root / FILE, night.profile, settings_text)
    run = NightRun(lab, night, settings, sandboxes, export_base(lab, night.base_commit), progress, say)
    budget = run.budget
    caps = settings.budget
    budget.set_cap(run.scope, "wall_s", night.budget_wall_s)
    for resource, cap in (("tokens", caps.tokens), ("usd", caps.usd), ("accelerator_s", caps.accelerator_s)):
        budget.set_cap(run.scope, resource, cap)
    run.spent_before_s = budget.lines(run.scope)["wall_s"].spent
    if not lab.git.is_clean():
        run.flag(f"uncommitted changes in the lab: kernels, evals and recipes are those of {night.base_commit[:12]}")
    return run


def _clean_up(run: NightRun) -> list[str]:
    """Remove what dead runs left, under the night's lock: containers, worktrees, scratch, leases, half-made models."""
    lab = run.lab
    removed = [f"container {name} removed" for name in run.sandboxes.reap()]
    removed += [f"worktree {name} removed" for name in lab.git.delete_worktrees()]
    removed += [f"checkpoint folder {name} removed" for name in checkpoints.sweep(lab)]
    shutil.rmtree(lab.state / "scratch", ignore_errors=True)
    (lab.state / "scratch").mkdir()
    for training in (lab.state / "training").glob("*"):
        if training.name != f"night-{run.id}":
            shutil.rmtree(training, ignore_errors=True)
    for aside in (lab.state / "artifacts").glob("*/.*"):
        aside.unlink(missing_ok=True)
    Budget(lab.ledger).release_dead()
    lost = reap_lost(lab.ledger)
    for line in removed:
        lab.ledger.log("reaped", line, night_id=run.id)
    return [*(f"{name} was lost and runs again" for name in lost), *removed]


def _carry(run: NightRun, server: Server, say: Callable[[str], None]) -> str:
    """Run the Prefect flow; "done" or "budget"."""
    server.wait()
    from prefect import flow

    from flows import data_step, judge_step, kernel_campaign, posttrain_step, survey_step

    steps: dict[str, Callable[[NightRun], None]] = {
        "import": survey_step.import_model,
        "survey": survey_step.survey,
        "kernels": kernel_campaign.campaigns,
        "data": data_step.data,
        "posttrain": posttrain_step.posttrain,
        "judge": judge_step.judge,
    }

    @flow(name="night", log_prints=False, validate_parameters=False)
    def night(night_id: int) -> str:
        from prefect.runtime import flow_run

        _note_flow_run(run, str(flow_run.id))
        for name in STEPS[:-1]:
            if not _wanted(run, name):
                continue
            say(f"{name}: {run.spent_s():.0f} s of {run.night.budget_wall_s:.0f} s spent")
            try:
                _within_budget(run, name)
                with _timed(run, name):
                    _as_flow(name, steps[name])(night_id)
            except BudgetExceeded as error:
                run.flag(f"budget: {error.message}; {name} and what follows did not run")
                return "budget"
        return "done"

    return str(night(run.id))


def _within_budget(run: NightRun, step: str) -> None:
    """The wall clock stops new work from starting. What was trained is judged all the same: it is paid for already."""
    if run.left_s() > 0:
        return
    over = f"the {run.night.budget_wall_s:.0f} s of tonight are spent"
    if step != "judge":
        raise BudgetExceeded(over)
    run.flag(f"{over}; the successor was judged past it")


def _as_flow(name: str, step: Callable[[NightRun], None]) -> Callable[[int], None]:
    """A step as a sub-flow of its own, so that Prefect shows it, with its own state."""
    from prefect import flow

    @flow(name=name, validate_parameters=False)
    def step_flow(night_id: int) -> None:
        step(running(night_id))

    return step_flow


def _wanted(run: NightRun, step: str) -> bool:
    if step == "kernels":
        return run.wants("kernels")
    if step in ("survey", "data"):
        return run.wants("data") or run.wants("posttrain")
    if step in ("posttrain", "judge"):
        return run.wants("posttrain")
    return True


@contextmanager
def _timed(run: NightRun, name: str) -> Iterator[None]:
    begun = time.monotonic()
    run.progress(name, 0, 1)
    try:
        yield
    finally:
        took_s = time.monotonic() - begun
        run.took_s[name] = round(run.took_s.get(name, 0.0) + took_s, 1)
        if name in ("data", "posttrain", "judge"):
            survey = stored_result(run.lab.ledger, run.id, "survey", "survey") or {}
            work_on(run, survey.get("project_id"), took_s)
        _settle_wall(run)
        run.progress(name, 1, 1)


def _settle_wall(run: NightRun) -> None:
    """Count this process's wall clock so far, so that a night killed later does not get it for free."""
    spent = run.spent_s()
    run.budget.spend(run.scope, "wall_s", spent - run.spent_before_s)
    run.spent_before_s, run.started = spent, time.monotonic()


def _note_flow_run(run: NightRun, flow_run_id: str) -> None:
    with run.lab.ledger.write() as session:
        night = session.get_one(Night, run.id)
        night.flow_run_id = flow_run_id
        session.add(night)


def _close(run: NightRun, status: str) -> None:
    _settle_wall(run)
    with run.lab.ledger.write() as session:
        night = session.get_one(Night, run.id)
        night.status = status
        night.summary = {**night.summary, "took_s": _took(night, run)}
        session.add(night)
        session.add(Event(night_id=run.id, kind=status, message=f"after {run.spent_s():.0f} s"))


def _took(night: Night, run: NightRun) -> dict[str, float]:
    """Seconds per step, added up over the starts of a night."""
    before = night.summary.get("took_s", {})
    return {name: round(before.get(name, 0.0) + run.took_s.get(name, 0.0), 1) for name in {**before, **run.took_s}}


def _finish(run: NightRun, status: str, on_report: Callable[[int], Path | None]) -> dict[str, Any]:
    _settle_wall(run)
    summary = summarise(run, status)
    with run.lab.ledger.write() as session:
        night = session.get_one(Night, run.id)
        summary["took_s"] = _took(night, run)
        night.status, night.ended_at, night.summary = status, now(), summary
        session.add(night)
        session.add(Event(night_id=run.id, kind=status, message=f"after {run.spent_s():.0f} s"))
        for proposal in session.exec(select(Proposal).where(Proposal.night_id == run.id, Proposal.status == "running")):
            proposal.status, proposal.changed_at = "failed", now()
            session.add(proposal)
    shutil.rmtree(run.lab.state / "training" / f"night-{run.id}", ignore_errors=True)
    report = on_report(run.id)
    if report is not None:
        summary["report"] = str(report)
    return summary
