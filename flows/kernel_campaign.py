"""Kernel campaigns: the model proposes moves in a task's space, the judge decides, the best goes on a branch.

A candidate is the incumbent's complete file with the schedule of one (target, size) cell replaced.  Cells that nobody
has tuned come first.  Every candidate is an experiment of its own, so a killed campaign goes on at the next candidate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import col, select

from agents.kernel_author import Move, propose_moves
from agents.record import Recorder
from flows.certify import fallen_cheats, note_health
from flows.context import NightRun, coarse_task
from flows.errand import is_errand
from flows.projects import night_projects
from flows.spending import work_on
from flows.survey_step import subject_of
from flows.words import commit_message, slug
from kernels.judge import Judge, judge_sha256
from kernels.library import load_tasks
from kernels.search import best_beating, campaign_cells, distinct
from kernels.space import Cell, parse_schedules, render
from kernels.task import Task
from workspace.files import sha256_bytes
from workspace.tables import Candidate, Project, Proposal, Verdict, Weakness, now

KERNEL_SHARE = 0.4  # of the time that is left when the campaigns begin; the rest is for the successor
CELLS_PER_NIGHT = 2  # of each task: a few candidates in one cell say more than one candidate in each


@dataclass(frozen=True)
class Incumbent:
    """What a candidate must beat: the file at the base commit, and the prediction for each cell under work."""

    source: str
    cells: tuple[Cell, ...]
    predicted_us: dict[Cell, float]
    floor_us: dict[Cell, float]
    costs: dict[Cell, dict[str, float | int | str]]


def campaigns(run: NightRun) -> None:
    """One campaign per task of the settings; those that a person's project names come first."""
    tasks = load_tasks(run.base / "kernels")
    projects = () if is_errand(run.night) else night_projects(run.lab, ("kernel",))
    wanted = {project.target: project for project in projects}
    names = [name for name in wanted if name in tasks]
    names += [name for name in run.settings.kernels.tasks if name in tasks and name not in names]
    for missing in sorted({*wanted, *run.settings.kernels.tasks} - set(tasks)):
        run.flag(f"kernel task {missing} is in the settings or a project, but not in kernels/ of the base commit")
    if not _believed(run):
        return
    with Judge(run.lab.secret("kernel-judge"), run.sandboxes, run.settings.kernels.targets) as judge:
        for index, name in enumerate(names):
            run.progress(
                "kernels", index * run.settings.kernels.candidates, len(names) * run.settings.kernels.candidates
            )
            campaign = Campaign(run, judge, tasks[name], wanted.get(name), index, len(names))
            begun = time.monotonic()
            coarse_task(f"kernel {name}", campaign.work)
            if name in wanted:
                work_on(run, wanted[name].id, time.monotonic() - begun)
        note_health(run.lab, judge, run.id)


def _believed(run: NightRun) -> bool:
    """Whether the judge passes its own test, which runs at the first night that it judges in."""
    with Judge(run.lab.secret("kernel-judge"), run.sandboxes, compile_candidates=False) as judge:
        fallen = fallen_cheats(
            run.lab, judge, lambda key, work: run.once("self-test", key, work),
            lambda done, total: run.say(f"kernels: the judge's own test, {done} of {total}", often=True), run.id,
            quick=run.settings.kernels.judge == "smoke",
        )  # fmt: skip
        if judge.room.asked:
            note_health(run.lab, judge, run.id)
    if fallen:
        run.flag(f"no kernel was taken tonight: the judge fails its own test ({', '.join(fallen)})")
    return not fallen


class Campaign:
    """One task, one night."""

    def __init__(
        self, run: NightRun, judge: Judge, task: Task, project: Project | None, index: int, count: int
    ) -> None:
        self.run, self.judge, self.task, self.project = run, judge, task, project
        self.index, self.count = index, count
        share = 1.0 if run.night.only == ["kernels"] else KERNEL_SHARE
        left_s = max(run.left_s(), 0.0) * share
        self.until_s = run.spent_s() + left_s / (count - index)

    def work(self) -> None:
        source = self.run.lab.git.read_file(self.run.night.base_commit, self.path).decode()
        table = parse_schedules(source)
        sizes = [self.task.size(shape) for shape, _why in self.task.bench_shapes.values()]
        cells = campaign_cells(table, self.run.settings.kernels.targets, sizes)[:CELLS_PER_NIGHT]
        if not cells:
            self.run.flag(f"{self.task.name}: no cell for {', '.join(self.run.settings.kernels.targets)} in its table")
            return
        incumbent = self._incumbent(source, tuple(cells))
        if incumbent is None:
            return
        results: dict[Cell, dict[int, float]] = {cell: {} for cell in cells}
        for done, move in enumerate(self._moves(incumbent)):
            if self.run.spent_s() > self.until_s:
                self.run.flag(f"{self.task.name}: {done} candidates, then its share of the night's time was spent")
                break
            self.run.progress(
                "kernels",
                self.index * self.run.settings.kernels.candidates + done,
                self.count * self.run.settings.kernels.candidates,
            )
            judged = self._judge(move, incumbent)
            if judged["verdict"] == "accepted" and judged.get("predicted_us"):
                results[move.cell][judged["candidate_id"]] = judged["predicted_us"]
        self._commit_best(incumbent, results)

    @property
    def path(self) -> str:
        return f"kernels/{self.task.name}/kernel.py"

    def _incumbent(self, source: str, cells: tuple[Cell, ...]) -> Incumbent | None:
        def work() -> dict[str, Any]:
            result = self.judge.check(
                self.task, source, profile=self.run.settings.kernels.judge, cells=self._both(cells)
            )
            return {**result.to_json(), "cells": result.cells_to_json()}

        found = self.run.once("kernel", f"{self.task.name}/incumbent", work)
        if found["verdict"] != "accepted":
            codes = ", ".join(reason["code"] for reason in found["reasons"])
            self.run.flag(f"{self.task.name}: the judge does not accept the incumbent itself ({codes}); no campaign")
            return None
        predictions = {(entry["target"], entry["size"]): entry["predicted"] for entry in found["cells"]}
        return Incumbent(
            source, cells,
            {cell: predictions[cell]["time_us"] for cell in cells},
            {cell: predictions[cell]["floor_us"] for cell in cells},
            {cell: predictions[cell].get("terms", {}) for cell in cells},
        )  # fmt: skip

    def _both(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells' sizes on every target: a candidate is compiled for all of them."""
        return sorted({(target, size) for _target, size in cells for target in self.run.settings.kernels.targets})

    def _moves(self, incumbent: Incumbent) -> list[Move]:
        """What the model proposes, stored at once, so that a resumed night works on the same candidates."""

        project_id = self.project.id if self.project else None

        def work() -> dict[str, Any]:
            moves = propose_moves(
                self.run.model(subject_of(self.run)), self.task, incumbent.source, incumbent.cells, self._failures(),
                self.run.settings.kernels.candidates, self.run.seed("moves", self.task.name) % 2**63,
                Recorder(self.run.lab, self.run.id, "kernel_author", project_id=project_id),
                costs=incumbent.costs,
            )  # fmt: skip
            return {"moves": [move.to_json() for move in moves]}

        stored = self.run.once("propose", self.task.name, work)
        return [Move.from_json(row) for row in stored["moves"]]

    def _failures(self) -> list[str]:
        """Reason codes of this task's rejected candidates of earlier nights, newest first."""
        with self.run.lab.ledger.read() as session:
            rows = session.exec(
                select(Verdict, Candidate)
                .where(Verdict.candidate_id == Candidate.id, Candidate.task == self.task.name)
                .where(Verdict.decision == "rejected")
                .order_by(col(Verdict.id).desc())
                .limit(8)
            ).all()
        return [f"{candidate.move}: {verdict.figures.get('reasons', '')}"[:200] for verdict, candidate in rows]

    def _judge(self, move: Move, incumbent: Incumbent) -> dict[str, Any]:
        source = render(incumbent.source, *move.cell, move.schedule)
        candidate = self._candidate(move, source)
        key = f"{self.task.name}/{candidate.sha256[:12]}"

        def work() -> dict[str, Any]:
            if not distinct([incumbent.source, source])[1:]:
                raise AssertionError("a move that changes nothing must not reach the judge")
            result = self.judge.check(
                self.task, source, profile=self.run.settings.kernels.judge, cells=self._both([move.cell])
            )
            entries = {(entry["target"], entry["size"]): entry for entry in result.cells_to_json()}
            predicted = (entries.get(move.cell) or {}).get("predicted") or {}
            before_us = incumbent.predicted_us[move.cell]
            time_us = predicted.get("time_us")
            return {
                **result.to_json(),
                "candidate_id": candidate.id, "cell": list(move.cell), "schedule": dict(move.schedule),
                "incumbent_us": before_us, "predicted_us": time_us, "floor_us": incumbent.floor_us[move.cell],
                "ratio": time_us / before_us if time_us else None,
            }  # fmt: skip

        result = self.run.once("kernel", key, work, candidate_id=candidate.id)
        self._verdict(candidate, key, result)
        return result

    def _candidate(self, move: Move, source: str) -> Candidate:
        sha256 = sha256_bytes(source.encode())
        self.run.lab.artifacts.put_bytes(source.encode(), "kernel-source")
        with self.run.lab.ledger.write() as session:
            same = select(Candidate).where(
                Candidate.night_id == self.run.id, Candidate.task == self.task.name, Candidate.sha256 == sha256
            )
            found = session.exec(same).first()
            if found is None:
                found = Candidate(
                    night_id=self.run.id, task=self.task.name, sha256=sha256, model_call_id=move.model_call_id,
                    move={"cell": list(move.cell), **move.schedule},
                )  # fmt: skip
                session.add(found)
                session.flush()
            return found

    def _verdict(self, candidate: Candidate, key: str, result: dict[str, Any]) -> None:
        experiment = self.run.experiment_id("kernel", key)
        figures = {
            name: result[name] for name in ("reasons", "ratio", "predicted_us", "incumbent_us", "floor_us", "cell")
        }
        with self.run.lab.ledger.write() as session:
            if session.exec(select(Verdict.id).where(Verdict.experiment_id == experiment)).first() is None:
                session.add(
                    Verdict(
                        night_id=self.run.id, experiment_id=experiment, candidate_id=candidate.id,
                        decision=result["verdict"], level=result["level"],
                        judge_sha256=result["judge"].removeprefix("sha256:"), figures=figures,
                    )
                )  # fmt: skip

    def _commit_best(self, incumbent: Incumbent, results: dict[Cell, dict[int, float]]) -> None:
        """The best candidate over the cells that beats its incumbent by the stated minimum goes on a branch."""
        min_gain = self.run.settings.kernels.min_gain
        ratios: dict[tuple[Cell, int], float] = {}
        for cell, times in results.items():
            best = best_beating(incumbent.predicted_us[cell], times, min_gain)
            if best is not None:
                ratios[cell, best] = times[best] / incumbent.predicted_us[cell]
        if not ratios:
            return
        cell, candidate_id = min(ratios, key=lambda each: ratios[each])
        proposal = self._proposal(cell, candidate_id, incumbent, results[cell][candidate_id])
        if proposal.status == "running":
            self._branch(proposal)

    def _proposal(self, cell: Cell, candidate_id: int, incumbent: Incumbent, time_us: float) -> Proposal:
        slot = f"{self.task.name}/{cell[0]}/{cell[1]}"
        before_us = incumbent.predicted_us[cell]
        with self.run.lab.ledger.write() as session:
            found = session.exec(
                select(Proposal).where(Proposal.night_id == self.run.id, Proposal.slot == slot)
            ).first()
            if found is not None:
                return found
            weakness = Weakness(
                night_id=self.run.id, kind="kernel", name=slot,
                figures={"predicted_us": before_us, "floor_us": incumbent.floor_us[cell]},
            )  # fmt: skip
            subject = subject_of(self.run)
            found = Proposal(
                night_id=self.run.id, project_id=self.project.id if self.project else None, kind="kernel",
                target=self.task.name, slot=slot,
                title=f"{self.task.name}: schedule of {cell[0]} at {cell[1]}",
                hypothesis=f"predicted {time_us:.1f} us, not {before_us:.1f} us ({1 - time_us / before_us:.1%} less)",
                plan={"cell": list(cell), "predicted_us": time_us, "incumbent_us": before_us,
                      "floor_us": incumbent.floor_us[cell], "ratio": time_us / before_us},
                author=subject.name, status="running", level="compiled", base_commit=self.run.night.base_commit,
                candidate_id=candidate_id, flags=["unmeasured"],
            )  # fmt: skip
            session.add_all([weakness, found])
            session.flush()
            candidate = session.get_one(Candidate, candidate_id)
            candidate.proposal_id = found.id
            session.add(candidate)
            return found

    def _branch(self, proposal: Proposal) -> None:
        """Commit from a worktree of its own; a run killed in between finds its own commit again."""
        lab = self.run.lab
        with lab.ledger.read() as session:
            candidate = session.get_one(Candidate, proposal.candidate_id)
        source = lab.artifacts.get_bytes(candidate.sha256)
        branch = f"proposal/{proposal.id}-{slug(f'{proposal.target} {proposal.slot.split(chr(47), 1)[1]}')}"
        message = commit_message(proposal, candidate, subject_of(self.run), judge_sha256())
        head = lab.git.commit_on_branch(branch, self.run.night.base_commit, {self.path: source}, message)
        with lab.ledger.write() as session:
            row = session.get_one(Proposal, proposal.id)
            row.branch, row.head, row.status, row.changed_at = branch, head, "awaiting_review", now()
            session.add(row)
