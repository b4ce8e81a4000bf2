"""Is the successor better? Parent and successor on the same fresh items, then the gate; the verdict has its own row."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlmodel import select

from flows.context import NightRun, coarse_task, most_tokens
from flows.data_step import chosen_weakness
from flows.judged_items import JudgedItems, judged_items
from flows.plan import Plan, plan
from flows.recipes import data_recipe, night_recipe
from flows.survey_step import store_run, subject_of
from model import compare as compare_module
from model.checkpoints import folder_of, hash_files, tree_sha256
from model.compare import (
    GateSettings,
    IntegrityCheck,
    PairedEval,
    PairedProse,
    compare,
    contamination_check,
    holdout_check,
    identity_check,
    lineage_check,
)
from model.contamination import ContaminationIndex
from model.dataset import MANIFEST, PARQUET, check_dataset
from model.evals import EvalResult, ItemResult, chance_of, run_evals
from workspace import stats
from workspace.experiments import stored_result
from workspace.files import sha256_bytes
from workspace.tables import Checkpoint, Dataset, Proposal, Verdict, now


def judge(run: NightRun) -> None:
    """Judge tonight's successor, if there is one."""
    survey = chosen_weakness(run)
    target = str(survey["chosen"]) if survey else ""
    trained = stored_result(run.lab.ledger, run.id, "posttrain", target)
    if survey is None or trained is None:
        return
    with run.lab.ledger.read() as session:
        successor = session.get_one(Checkpoint, trained["checkpoint_id"])
    planned = plan(run, night_recipe(run), data_recipe(run))
    judged = judged_items(run, target, survey, planned)
    parent = subject_of(run)
    for place, checkpoint in enumerate((parent, successor)):
        evaluate = functools.partial(_evaluate, run, checkpoint, judged, place)
        run.once("evaluate", checkpoint.name, functools.partial(coarse_task, f"evaluate {checkpoint.name}", evaluate))
    decide = functools.partial(_judge, run, parent, successor, judged, planned)
    result = run.once("judge", target, functools.partial(coarse_task, "judge", decide))
    _record(run, target, result)


def _evaluate(run: NightRun, checkpoint: Checkpoint, judged: JudgedItems, place: int) -> dict[str, Any]:
    work = [(judged.target, judged.target_items)]
    work += [(judged.guards[name], items) for name, items in sorted(judged.guard_items.items())]
    model = run.model(checkpoint)
    with run.tokens(most_tokens(work)) as used:
        results = run_evals(model, work, lambda done, total: run.progress("judge", done + place * total, 2 * total))
        used.append(sum(each.tokens_in + each.tokens_out for each in results))
    prose = [[nll, tokens] for nll, tokens in model.token_nll(judged.prose)]
    roles = ["target", *("guard" for _ in work[1:])]
    stored = {}
    for role, result, (each, items) in zip(roles, results, work, strict=True):
        stored[each.name] = store_run(run, checkpoint, result, items, role, ("evaluate", checkpoint.name))
    return {
        "checkpoint": checkpoint.name,
        "scores": {each.eval: _score(each) for each in results},
        "rows_sha256": run.lab.artifacts.put_json({each.eval: each.to_json() for each in results}, "eval-results"),
        "stored": stored,
        "prose": prose,
    }


def _score(result: EvalResult) -> dict[str, float | int]:
    return {"n": len(result.rows), "strict": result.accuracy, "stderr": result.stderr, "lenient": result.lenient}


def _judge(
    run: NightRun, parent: Checkpoint, successor: Checkpoint, judged: JudgedItems, planned: Plan
) -> dict[str, Any]:
    before = stored_result(run.lab.ledger, run.id, "evaluate", parent.name)
    after = stored_result(run.lab.ledger, run.id, "evaluate", successor.name)
    assert before is not None
    assert after is not None
    settings = run.settings.judge
    gate = GateSettings(alpha=settings.alpha, margin=planned.margin, prose_margin=settings.prose_margin)
    prose = PairedProse([tuple(row) for row in before["prose"]], [tuple(row) for row in after["prose"]])
    found = compare(
        parent.name, successor.name, _pairs(run, before, after, judged), prose,
        _integrity(run, parent, successor, judged), gate,
    )  # fmt: skip
    return {**found.to_json(), "settings": {"margin": gate.margin, "prose_margin": gate.prose_margin}}


def _pairs(run: NightRun, before: dict[str, Any], after: dict[str, Any], judged: JudgedItems) -> list[PairedEval]:
    rows = [run.lab.artifacts.get_json(each["rows_sha256"]) for each in (before, after)]
    pairs = []
    for name, items in [(judged.target.name, judged.target_items), *sorted(judged.guard_items.items())]:
        if not items:
            continue
        each = judged.target if name == judged.target.name else judged.guards[name]
        old, new = ([ItemResult.from_json(row) for row in side[name]["rows"]] for side in rows)
        role = "target" if name == judged.target.name else "guard"
        pairs.append(PairedEval(name, each.KIND, role, chance_of(each, items), old, new))  # type: ignore[arg-type]  # role is one of the two words above
    return pairs


def _integrity(run: NightRun, parent: Checkpoint, successor: Checkpoint, judged: JudgedItems) -> list[IntegrityCheck]:
    lab = run.lab
    with lab.ledger.read() as session:
        dataset = session.get_one(Dataset, successor.dataset_id)
        reads = session.exec(select(Verdict.id).where(Verdict.proposal_id == dataset.proposal_id)).all()
    with _dataset_files(run, dataset) as folder:
        checked = check_dataset(folder, ContaminationIndex(judged.forbidden))
    contamination = contamination_check(checked.rows, [*checked.hits, *checked.faults])
    old, new = folder_of(lab, parent), folder_of(lab, successor)
    figures = successor.figures
    lineage = lineage_check(
        {
            "parent": (figures.get("parent_weights_sha256"), parent.files.get("model.safetensors")),
            "data set": (figures.get("data_sha256"), dataset.parquet_sha256),
            "parent of the data": (dataset.checkpoint_id, parent.id),
            "recipe": (successor.recipe_sha256, dataset.recipe_sha256),
            "successor's files": (successor.sha256, tree_sha256(hash_files(new))),
        }
    )
    return [contamination, identity_check(old, new), lineage, holdout_check(len(reads), 1)]


@contextmanager
def _dataset_files(run: NightRun, dataset: Dataset) -> Iterator[Path]:
    """The data set's two files under their own names."""
    with run.lab.scratch("check") as folder:
        shutil.copyfile(run.lab.artifacts.path(dataset.parquet_sha256), folder / PARQUET)
        shutil.copyfile(run.lab.artifacts.path(dataset.manifest_sha256), folder / MANIFEST)
        yield folder


def _record(run: NightRun, target: str, result: dict[str, Any]) -> None:
    """The verdict's row, and the proposal to the reviewer: whatever the verdict, a person decides."""
    experiment = run.experiment_id("judge", target)
    trained = stored_result(run.lab.ledger, run.id, "posttrain", target)
    assert trained is not None
    with run.lab.ledger.write() as session:
        successor = session.get_one(Checkpoint, trained["checkpoint_id"])
        proposal = session.exec(
            select(Proposal).where(Proposal.night_id == run.id, Proposal.kind == "posttrain", Proposal.target == target)
        ).one()
        if session.exec(select(Verdict.id).where(Verdict.experiment_id == experiment)).first() is None:
            session.add(
                Verdict(
                    night_id=run.id, experiment_id=experiment, proposal_id=proposal.id, decision=result["verdict"],
                    level="measured", judge_sha256=gate_sha256(), figures=result,
                )
            )  # fmt: skip
        if proposal.status == "running":
            proposal.status, proposal.head, proposal.checkpoint_id = "awaiting_review", successor.sha256, successor.id
            proposal.level, proposal.changed_at = "measured", now()
            proposal.title = f"{successor.name}: {target}"
            session.add(proposal)


def gate_sha256() -> str:
    """Hash of the gate's own code: a verdict says by which judge it was given."""
    return sha256_bytes(b"".join(Path(str(module.__file__)).read_bytes() for module in (compare_module, stats)))
