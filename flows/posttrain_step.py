"""Train tonight's successor in its sandbox; a killed training goes on at its last checkpoint."""

from __future__ import annotations

import shutil
from typing import Any

from sqlmodel import select

from flows.context import NightRun, coarse_task
from flows.data_step import chosen_weakness
from flows.plan import plan, train_s
from flows.recipes import data_recipe, night_recipe
from flows.survey_step import subject_of
from model import checkpoints
from model.posttrain import Progress
from model.posttrain import posttrain as train
from workspace.experiments import stored_result
from workspace.files import write_atomically
from workspace.tables import Checkpoint, Dataset, Proposal


def posttrain(run: NightRun) -> None:
    """Nothing when there is no data set tonight."""
    survey = chosen_weakness(run)
    made = stored_result(run.lab.ledger, run.id, "dataset", str(survey["chosen"])) if survey else None
    if survey is None or made is None:
        return
    run.forget_models()  # the training needs the memory
    target = str(survey["chosen"])
    run.once("posttrain", target, lambda: coarse_task("posttrain", lambda: _train(run, made["dataset_id"])))


def _train(run: NightRun, dataset_id: int) -> dict[str, Any]:
    lab, parent = run.lab, subject_of(run)
    with lab.ledger.read() as session:
        dataset = session.get_one(Dataset, dataset_id)
    recipe = night_recipe(run)
    planned = plan(run, recipe, data_recipe(run))
    folder = lab.state / "training" / f"night-{run.id}"
    data = folder / "data.parquet"
    if not data.exists():
        write_atomically(data, lab.artifacts.get_bytes(dataset.parquet_sha256))

    def show(progress: Progress) -> None:
        run.progress("posttrain", progress.step, progress.steps)
        run.say(
            f"posttrain: step {progress.step} of {progress.steps}, loss {progress.loss:.3f}, "
            f"{progress.tokens_per_s:.0f} tokens/s, {progress.eta_s:.0f} s left",
            often=True,
        )

    trained = train(
        run.sandboxes, parent_dir=checkpoints.folder_of(lab, parent), data=[data], out_dir=folder / "out",
        recipe=recipe, seed=run.seed("posttrain") % 2**31, threads=run.threads, train_s=train_s(run, planned),
        on_progress=show,
    )  # fmt: skip
    if trained.steps < recipe.steps:
        run.flag(f"{trained.steps} of the recipe's {recipe.steps} training steps fitted into the time of the night")
    figures = {
        "steps": trained.steps, "recipe_steps": recipe.steps, "loss_target": trained.loss_target, "kl": trained.kl,
        "parent_weights_sha256": trained.parent_sha256, "data_sha256": trained.data_sha256[0],
        "trainer_recipe_sha256": trained.recipe_sha256, "seconds": trained.seconds,
        "peak_memory_bytes": trained.peak_memory_bytes,
    }  # fmt: skip
    publish = folder / "publish"
    shutil.rmtree(publish, ignore_errors=True)
    shutil.copytree(trained.directory, publish)  # copied, not moved: a kill before the row finds the training whole
    successor = checkpoints.register(
        lab, publish, parent=parent, dataset_id=dataset_id, night_id=run.id,
        recipe_sha256=dataset.recipe_sha256, figures=figures,
    )  # fmt: skip
    _link(run, dataset, successor)
    return {
        "checkpoint_id": successor.id, "checkpoint": successor.name, "steps": trained.steps, "wall_s": trained.wall_s,
        "seconds": trained.seconds, "loss_curve": trained.loss_curve, "tokens_per_s": trained.tokens_per_s,
        "peak_memory_bytes": trained.peak_memory_bytes,
    }  # fmt: skip


def _link(run: NightRun, dataset: Dataset, successor: Checkpoint) -> None:
    with run.lab.ledger.write() as session:
        proposal = session.exec(select(Proposal).where(Proposal.id == dataset.proposal_id)).one()
        proposal.checkpoint_id = successor.id
        session.add(proposal)
