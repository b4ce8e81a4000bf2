"""``nightshift data``: data sets with their lineage, making one by hand, and looking for contamination."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.common import EXIT_NEGATIVE, JsonOption, emit, open_lab, progress, table
from workspace.errors import UserError

if TYPE_CHECKING:
    from model.dataset import DatasetResult
    from model.items import Eval, Item
    from workspace.lab import Lab
    from workspace.tables import Checkpoint, Dataset

app = typer.Typer(help="Data sets: lineage, making one, contamination.", no_args_is_help=True)
IdArgument = Annotated[int, typer.Argument(metavar="ID", help="See data list.")]
ALL_GUARD_ITEMS = 2000  # more than any shipped guard has


@app.command("list")
def list_datasets(as_json: JsonOption = False) -> None:
    """All data sets of the lab, the newest last."""
    from sqlmodel import col, select

    from workspace.tables import Dataset

    lab = open_lab()
    with lab.ledger.read() as session:
        rows = [_summary(row) for row in session.exec(select(Dataset).order_by(col(Dataset.id))).all()]

    def text() -> str:
        if not rows:
            return "no data set yet: a night makes them, or: nightshift data generate RECIPE"
        cells = [[row["id"], row["name"], row["target"], row["rows"], _shares(row), row["night"]] for row in rows]
        return table(("id", "name", "target", "rows", "shares", "night"), cells)

    emit({"datasets": rows}, as_json, text)


@app.command()
def show(dataset_id: IdArgument, rows: Annotated[int, typer.Option("--rows", min=0, help="Rows to print.")] = 3,
         as_json: JsonOption = False) -> None:  # fmt: skip
    """One data set: shares, what was refused, where it comes from, a few rows."""
    from model.dataset import MANIFEST, PARQUET, read_rows

    lab = open_lab()
    dataset = _get(lab, dataset_id)
    with files_of(lab, dataset) as folder:
        manifest = json.loads((folder / MANIFEST).read_text())
        sample = [
            {"source": row.source, "family": row.family, "prompt": row.prompt[-1].text if row.prompt else "",
             "completion": row.completion, "key": row.key}
            for row in read_rows(folder / PARQUET)[:rows]
        ]  # fmt: skip
    document = {**_summary(dataset), "manifest": manifest, "sample": sample, "lineage": _lineage(lab, dataset)}

    def text() -> str:
        flat = {
            **_summary(dataset),
            "figures": _shares(document),
            "refused": manifest["refused"],
            **document["lineage"],
        }
        lines = [table(("", ""), list(flat.items()))]
        lines += [f"\n[{row['source']}] {row['prompt']}\n  → {row['completion']}" for row in sample]
        return "\n".join(lines)

    emit(document, as_json, text)


@app.command()
def check(dataset_id: IdArgument, as_json: JsonOption = False) -> None:
    """Is the file what its manifest says, and does no row ask what an eval asks? Exit 1 if not."""
    from model.contamination import ContaminationIndex
    from model.dataset import check_dataset

    lab = open_lab()
    dataset = _get(lab, dataset_id)
    forbidden = [*judged_items(lab, dataset), *guard_items(lab)]
    with files_of(lab, dataset) as folder:
        found = check_dataset(folder, ContaminationIndex(forbidden))
    count = sum(len(items) for _, items in forbidden)
    document = {"dataset": dataset_id, "passed": found.passed, "rows": found.rows, "eval_items": count,
                "hits": found.hits, "faults": found.faults}  # fmt: skip

    def text() -> str:
        if found.passed:
            return f"data set {dataset_id}: {found.rows} rows, none asks what one of {count} eval items asks"
        return "\n".join([f"data set {dataset_id}: refused", *found.hits, *found.faults])

    emit(document, as_json, text)
    if not found.passed:
        raise typer.Exit(EXIT_NEGATIVE)


@app.command()
def generate(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a file in recipes/.")],
    target: Annotated[
        str | None, typer.Option("--target", metavar="FAMILY", help="What to mend; else the newest weakness.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a data set with the subject model, outside of a night."""
    from flows.judged_items import anchor_prose, replay_prompts
    from model.checkpoints import current, folder_of
    from model.dataset import DataRecipe, build_dataset
    from model.families import load_families
    from model.language_model import LanguageModel
    from workspace.files import sha256_bytes

    lab = open_lab()
    path = lab.root / "recipes" / f"{recipe}.toml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in path.parent.glob("*.toml")))
        raise UserError("no such recipe", field="RECIPE", value=recipe, allowed=known)
    text = path.read_text(encoding="utf-8")
    data_recipe = DataRecipe.from_toml(text, f"recipes/{recipe}.toml")
    families: dict[str, Eval] = dict(load_families(lab.settings.survey.families))
    name = target or _newest_weakness(lab, families)
    if name not in families:
        raise UserError("no such family", field="--target", value=name, allowed=", ".join(sorted(families)))
    subject = current(lab)
    model = LanguageModel.load(folder_of(lab, subject), lab.settings.model.threads)
    with lab.scratch("generate") as folder, progress(f"data for {name}") as step:
        result = build_dataset(
            model, families[name], data_recipe, folder / "data", seed=secrets.randbits(64),
            eval_items=guard_items(lab), replay_prompts=replay_prompts(), neighbours=families, prose=anchor_prose(),
            parent_sha256=subject.sha256, recipe_sha256=sha256_bytes(text.encode()),
            on_progress=lambda stage, done, total: step(done, total, stage),
        )  # fmt: skip
        dataset = _register(lab, result, subject, name, recipe, text)
    document = {**_summary(dataset), **result.to_json()}
    emit(document, as_json, lambda: f"data set {dataset.id}: {result.rows} rows for {name} ({_shares(document)})")


@contextmanager
def files_of(lab: Lab, dataset: Dataset) -> Iterator[Path]:
    """A folder with the data set's two files under their own names."""
    from model.dataset import MANIFEST, PARQUET

    with lab.scratch("data") as folder:
        for name, sha256 in ((PARQUET, dataset.parquet_sha256), (MANIFEST, dataset.manifest_sha256)):
            (folder / name).write_bytes(lab.artifacts.get_bytes(sha256))
        yield folder


def guard_items(lab: Lab) -> list[tuple[str, list[Item]]]:
    """All items of the lab's eval files, or as many as may ever be drawn."""
    from model.evals import draw_items, load_evals

    evals = load_evals(lab.root / "evals")
    return [(name, draw_items(each, 0, ALL_GUARD_ITEMS)) for name, each in evals.items()]


def judged_items(lab: Lab, dataset: Dataset) -> list[tuple[str, list[Item]]]:
    """The items of every stored eval run of this data set's night and of the checkpoints trained on it."""
    from sqlalchemy import ColumnElement
    from sqlmodel import col, or_, select

    from model.items import Item
    from workspace.tables import Checkpoint, EvalRun

    with lab.ledger.read() as session:
        trained = select(Checkpoint.id).where(Checkpoint.dataset_id == dataset.id)
        mine: list[ColumnElement[bool]] = [col(EvalRun.checkpoint_id).in_(trained)]
        if dataset.night_id is not None:
            mine.append(col(EvalRun.night_id).is_not_distinct_from(dataset.night_id))
        runs = session.exec(select(EvalRun).where(or_(*mine))).all()
    found: dict[tuple[str, str], list[Item]] = {}
    for run in runs:
        if (run.eval, run.rows_sha256) not in found:
            lines = lab.artifacts.get_bytes(run.rows_sha256).decode().splitlines()
            found[run.eval, run.rows_sha256] = [Item.from_json(json.loads(line)) for line in lines]
    return [(name, items) for (name, _), items in found.items()]


def _get(lab: Lab, dataset_id: int) -> Dataset:
    from sqlmodel import select

    from workspace.tables import Dataset

    with lab.ledger.read() as session:
        found = session.get(Dataset, dataset_id)
        known = session.exec(select(Dataset.id)).all() if found is None else []
    if found is None:
        allowed = ", ".join(map(str, known)) or "none yet"
        raise UserError("no such data set", field="ID", value=dataset_id, allowed=allowed)
    return found


def _newest_weakness(lab: Lab, families: dict[str, Eval]) -> str:
    from sqlmodel import col, select

    from workspace.tables import Weakness

    with lab.ledger.read() as session:
        newest = select(Weakness).where(Weakness.kind == "eval").order_by(col(Weakness.id).desc())
        found = session.exec(newest).first()
    if found is None:
        raise UserError("no weakness is known yet", field="--target", allowed=", ".join(sorted(families)))
    return found.name


def _register(lab: Lab, result: DatasetResult, subject: Checkpoint, target: str, recipe: str, text: str) -> Dataset:
    from model.dataset import MANIFEST, PARQUET
    from workspace.tables import Dataset, Recipe

    parquet = lab.artifacts.put_file(result.directory / PARQUET, "dataset")
    manifest = lab.artifacts.put_file(result.directory / MANIFEST, "manifest")
    recipe_sha256 = lab.artifacts.put_bytes(text.encode(), "recipe")
    figures = {key: result.to_json()[key] for key in ("counts", "shares", "refused", "self_share_of_target")}
    dataset = Dataset(
        checkpoint_id=subject.id or 0, name=f"manual-{target}", target=target, rows=result.rows,
        parquet_sha256=parquet, manifest_sha256=manifest, recipe_sha256=recipe_sha256, figures=figures,
    )  # fmt: skip
    with lab.ledger.write() as session:
        if session.get(Recipe, recipe_sha256) is None:
            session.add(Recipe(sha256=recipe_sha256, name=recipe, kind="posttrain"))
        session.add(dataset)
    shutil.rmtree(result.directory, ignore_errors=True)
    return dataset


def _summary(row: Dataset) -> dict[str, Any]:
    return {
        "id": row.id, "name": row.name, "target": row.target, "rows": row.rows, "night": row.night_id,
        "project": row.project_id, "checkpoint": row.checkpoint_id, "parquet_sha256": row.parquet_sha256,
        "manifest_sha256": row.manifest_sha256, "recipe_sha256": row.recipe_sha256, "figures": dict(row.figures),
        "created_at": row.created_at.isoformat(),
    }  # fmt: skip


def _lineage(lab: Lab, dataset: Dataset) -> dict[str, Any]:
    """Which model wrote it, and which were trained on it."""
    from sqlmodel import select

    from workspace.tables import Checkpoint

    with lab.ledger.read() as session:
        writer = session.get(Checkpoint, dataset.checkpoint_id)
        trained = session.exec(select(Checkpoint.name).where(Checkpoint.dataset_id == dataset.id)).all()
    return {"written by": writer.name if writer else None, "trained on it": ", ".join(trained) or None}


def _shares(row: dict[str, Any]) -> str:
    shares = row.get("figures", {}).get("shares", {})
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share)
