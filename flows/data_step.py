"""The data set for tonight's weakness, registered with its manifest and lineage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sqlmodel import Session, select

from flows.context import NightRun, coarse_task
from flows.judged_items import anchor_prose, judged_items, replay_prompts
from flows.plan import plan
from flows.recipes import data_recipe, night_recipe, recipe_text
from flows.survey_step import night_evals, subject_of
from model.dataset import MANIFEST, PARQUET, DataRecipe, DatasetResult, build_dataset
from model.items import Eval, Item, user
from workspace.experiments import stored_result
from workspace.files import sha256_bytes
from workspace.tables import Dataset, ModelCall, Project, Proposal, Recipe


def chosen_weakness(run: NightRun) -> dict[str, Any] | None:
    """What the survey chose tonight, or None."""
    survey = stored_result(run.lab.ledger, run.id, "survey", "survey")
    return survey if survey and survey["chosen"] else None


def data(run: NightRun) -> None:
    """Generate, verify, deduplicate, decontaminate; nothing when the survey found no usable weakness."""
    survey = chosen_weakness(run)
    if survey is not None:
        target = str(survey["chosen"])
        run.once("dataset", target, lambda: coarse_task("data", lambda: _data(run, survey, target)))


def _data(run: NightRun, survey: dict[str, Any], target: str) -> dict[str, Any]:
    subject, text = subject_of(run), recipe_text(run)
    recipe = data_recipe(run)
    judged = judged_items(run, target, survey, plan(run, night_recipe(run), data_recipe(run)))
    evals = night_evals(run)
    # survey items are only keys by now; an item is refused by its key, so that a bare one will do
    surveyed = [Item(key, (user(key),), "", "survey") for key in sorted(judged.survey_keys)]
    out = run.lab.state / "scratch" / f"dataset-{run.id}"
    shutil.rmtree(out, ignore_errors=True)
    with run.tokens(_most_tokens(recipe, evals[target])) as used:
        result = build_dataset(
            run.model(subject), evals[target], recipe, out,
            seed=run.seed("data", target),
            eval_items=[*judged.forbidden, ("survey", surveyed)],
            replay_prompts=replay_prompts(),
            neighbours={name: each for name, each in evals.items() if name != target},
            prose=anchor_prose(),
            parent_sha256=subject.sha256, recipe_sha256=sha256_bytes(text.encode()),
            on_progress=lambda _stage, done, total: run.progress("data", done, total),
        )  # fmt: skip
        used.append(result.cost.tokens_in + result.cost.tokens_out)
    _flag_own_share(run, result, recipe, target)
    dataset_id = _register(run, result, survey, target, text, out)
    shutil.rmtree(out, ignore_errors=True)
    return {"dataset_id": dataset_id, "target": target, **result.to_json()}


def _flag_own_share(run: NightRun, result: DatasetResult, recipe: DataRecipe, target: str) -> None:
    own, share = result.counts["self"], result.self_share_of_target
    if own == 0:
        run.flag(f"{target}: the model was right on none of the problems it tried; all answers are the verifier's gold")
    elif share < recipe.min_self_share:
        run.flag(
            f"{target}: {own} of the target rows are the model's own answers ({share:.1%}), "
            f"fewer than {recipe.min_self_share:.0%}: it is right too seldom"
        )


def _most_tokens(recipe: DataRecipe, target: Eval) -> int:
    """An upper bound: every problem that may be tried, every sample, with prompts of up to 256 tokens."""
    tries = int(recipe.problems * recipe.oversample) * recipe.samples * (256 + target.MAX_NEW_TOKENS)
    return tries + recipe.replay_prompts * (256 + recipe.replay_tokens) + recipe.neighbour_problems * 512


def _register(run: NightRun, result: DatasetResult, survey: dict[str, Any], target: str, recipe: str, out: Path) -> int:
    artifacts = run.lab.artifacts
    parquet = artifacts.put_file(out / PARQUET, "dataset")
    manifest = artifacts.put_file(out / MANIFEST, "manifest")
    recipe_sha256 = artifacts.put_bytes(recipe.encode(), "recipe")
    figures = {
        "counts": result.counts, "shares": result.shares, "refused": result.refused,
        "self_share_of_target": result.self_share_of_target,
    }  # fmt: skip
    subject = subject_of(run)
    with run.lab.ledger.write() as session:
        if session.get(Recipe, recipe_sha256) is None:
            session.add(Recipe(sha256=recipe_sha256, name=run.settings.data.recipe, kind="posttrain"))
        proposal = _proposal(session, run, survey, target)
        same = select(Dataset).where(Dataset.night_id == run.id, Dataset.parquet_sha256 == parquet)
        row = session.exec(same).first()
        if row is None:
            row = Dataset(
                night_id=run.id, project_id=survey["project_id"], proposal_id=proposal.id,
                checkpoint_id=subject.id or 0, name=f"night-{run.id}-{target}", target=target, rows=result.rows,
                parquet_sha256=parquet, manifest_sha256=manifest, recipe_sha256=recipe_sha256, figures=figures,
            )  # fmt: skip
            session.add(row)
            session.add(
                ModelCall(
                    night_id=run.id, project_id=survey["project_id"], role="data_author", endpoint="embedded",
                    model=subject.name, request_sha256=manifest, reply_sha256=parquet, status="done",
                    seed=str(run.seed("data", target)), tokens_in=result.cost.tokens_in,
                    tokens_out=result.cost.tokens_out, latency_s=round(result.cost.wall_s, 2),
                )
            )  # fmt: skip
            session.flush()
        assert row.id is not None
        return row.id


def _proposal(session: Session, run: NightRun, survey: dict[str, Any], target: str) -> Proposal:
    """The successor's proposal: the hypothesis that training on this data mends the weakness."""
    same = select(Proposal).where(Proposal.night_id == run.id, Proposal.kind == "posttrain", Proposal.target == target)
    found = session.exec(same).first()
    if found is None:
        project = session.get_one(Project, survey["project_id"])
        found = Proposal(
            night_id=run.id, project_id=project.id, kind="posttrain", target=target, slot="model",
            title=f"Train {target}", hypothesis=project.hypothesis, plan={"recipe": run.settings.data.recipe},
            author=subject_of(run).name, status="running", base_commit=run.night.base_commit,
        )  # fmt: skip
        session.add(found)
        session.flush()
    return found
