"""``nightshift eval``: the evals of a lab, running them with error bars, and the gate."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.common import EXIT_NEGATIVE, JsonOption, emit, open_lab, progress, table
from workspace.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from model.compare import IntegrityCheck, PairedEval, PairedProse
    from model.evals import EvalResult
    from model.items import Eval, Item
    from model.language_model import LanguageModel
    from workspace.lab import Lab
    from workspace.tables import Checkpoint, Dataset

app = typer.Typer(help="Evals with error bars, and the gate for a successor.", no_args_is_help=True)


@app.command("list")
def list_evals(as_json: JsonOption = False) -> None:
    """Families of the settings and eval files of the lab."""
    lab = open_lab()
    rows = [
        {"name": each.name, "title": each.TITLE, "kind": each.KIND, "source": source,
         "max_new_tokens": each.MAX_NEW_TOKENS}
        for source, evals in (("family", _families(lab)), ("file", _files(lab)))
        for each in evals.values()
    ]  # fmt: skip

    def text() -> str:
        return table(("name", "kind", "from", "title"), [[r["name"], r["kind"], r["source"], r["title"]] for r in rows])

    emit({"evals": rows}, as_json, text)


@app.command("run")
def run_named(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Evals or families; see eval list.")],
    model: Annotated[
        str | None, typer.Option("--model", metavar="M", help="A checkpoint; the subject if none.")
    ] = None,
    items: Annotated[int, typer.Option("--items", min=2, max=5000, help="Items of each.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """Run evals on fresh items and print accuracies with standard errors clustered by template."""
    from model.evals import draw_items, run_evals
    from workspace import stats

    lab = open_lab()
    chosen = [_eval(lab, name) for name in dict.fromkeys(names)]
    checkpoint = _checkpoint(lab, model)
    seed = secrets.randbits(64)
    work = [(each, draw_items(each, seed, items)) for each in chosen]
    with progress(f"evaluating {checkpoint.name}") as step:
        results = run_evals(_load(lab, checkpoint), work, step)
    rows = []
    for (each, drawn), result in zip(work, results, strict=True):
        _store(lab, checkpoint, result, drawn, "manual")
        low, high = stats.wilson(sum(row.strict for row in result.rows), len(result.rows))
        short = {key: value for key, value in result.to_json().items() if key != "rows"}
        rows.append({**short, "ci95": [low, high], "title": each.TITLE, "model": checkpoint.name})

    def text() -> str:
        cells = [
            [row["eval"], row["n"], f"{row['strict']:.1%}", f"{row['stderr']:.1%}",
             f"{row['ci95'][0]:.1%} to {row['ci95'][1]:.1%}", f"{row['lenient']:.1%}"]
            for row in rows
        ]  # fmt: skip
        return table(("eval", "items", "strict", "± stderr", "95% interval", "lenient"), cells)

    emit({"model": checkpoint.name, "evals": rows}, as_json, text)


@app.command()
def compare(
    parent: Annotated[str, typer.Argument(metavar="PARENT")],
    successor: Annotated[str, typer.Argument(metavar="SUCCESSOR")],
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="NAME", help="What it was trained for; else its data set's.")
    ] = None,
    target_items: Annotated[int | None, typer.Option("--target-items", min=8, help="Items of each target.")] = None,
    guard_items: Annotated[int | None, typer.Option("--guard-items", min=8, help="Guard items, pooled.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a successor against its parent on fresh items; exit 0 only for "promote"."""
    from model import checkpoints
    from model.compare import GateSettings
    from model.compare import compare as judge

    lab = open_lab()
    before, after = checkpoints.get(lab, parent), checkpoints.get(lab, successor)
    dataset = _dataset(lab, after)
    names = target or ([dataset.target] if dataset is not None else [])
    if not names:
        raise UserError("the successor has no data set to name its target", field="--target", allowed="eval list")
    settings = lab.settings.judge
    trained = _trained_keys(lab, dataset)
    targets = [(_eval(lab, name), target_items or settings.target_items) for name in names]
    guards = {name: each for name, each in _files(lab).items() if name not in names}
    share = -(-(guard_items or settings.guard_items) // max(1, len(guards)))
    work = _draw(targets, trained) + _draw([(each, share) for each in guards.values()], set())
    pairs, prose = _answers(lab, before, after, work, len(targets))
    checks = _integrity(lab, before, after, dataset, [(each.name, items) for each, items in work])
    gate = GateSettings(alpha=settings.alpha, margin=settings.margin, prose_margin=settings.prose_margin)
    found = judge(before.name, after.name, pairs, prose, checks, gate)
    emit(found.to_json(), as_json, lambda: _comparison_text(found.to_json()))
    if found.verdict != "promote":
        raise typer.Exit(EXIT_NEGATIVE)


def _comparison_text(document: dict[str, Any]) -> str:
    cells = [
        [claim["eval"], claim["role"], claim["n"], f"{claim['parent']:.3f}", f"{claim['successor']:.3f}",
         f"{claim['difference']:+.3f} [{_number(claim['ci95'][0])}, {_number(claim['ci95'][1])}]",
         f"{claim.get('p_holm', claim['p']):.2g}", f"{claim['power']:.2f}", claim["outcome"]]
        for claim in document["claims"]
    ]  # fmt: skip
    headers = ("claim", "role", "n", "parent", "successor", "difference [95%]", "p", "power", "outcome")
    checks = [
        f"{'ok ' if check['passed'] else 'NO '} {check['check']}: {check['detail']}" for check in document["integrity"]
    ]
    return "\n".join([f"verdict: {document['verdict']}", table(headers, cells), *checks, *document["explanation"]])


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:+.3f}"


def _families(lab: Lab) -> dict[str, Eval]:
    from model.families import load_families

    return dict(load_families(lab.settings.survey.families))


def _files(lab: Lab) -> dict[str, Eval]:
    from model.evals import load_evals

    return load_evals(lab.root / "evals")


def _eval(lab: Lab, name: str) -> Eval:
    known = {**_files(lab), **_families(lab)}
    if name not in known:
        raise UserError("no such eval", field="NAME", value=name, allowed=", ".join(sorted(known)))
    return known[name]


def _checkpoint(lab: Lab, name: str | None) -> Checkpoint:
    from model import checkpoints

    return checkpoints.get(lab, name) if name else checkpoints.current(lab)


def _load(lab: Lab, checkpoint: Checkpoint) -> LanguageModel:
    from model.checkpoints import folder_of
    from model.language_model import LanguageModel

    return LanguageModel.load(folder_of(lab, checkpoint), lab.settings.model.threads)


def _draw(wanted: Sequence[tuple[Eval, int]], exclude: set[str]) -> list[tuple[Eval, list[Item]]]:
    from model.evals import draw_items

    return [(each, draw_items(each, secrets.randbits(64), count, exclude)) for each, count in wanted]


def _answers(
    lab: Lab, before: Checkpoint, after: Checkpoint, work: list[tuple[Eval, list[Item]]], targets: int
) -> tuple[list[PairedEval], PairedProse]:
    from flows.judged_items import prose_passages
    from model.compare import PairedEval, PairedProse
    from model.evals import chance_of, run_evals

    results, prose = [], []
    for checkpoint in (before, after):
        model = _load(lab, checkpoint)
        with progress(f"evaluating {checkpoint.name}") as step:
            found = run_evals(model, work, step)
        prose.append(model.token_nll(prose_passages()))
        for number, (result, (_, items)) in enumerate(zip(found, work, strict=True)):
            _store(lab, checkpoint, result, items, "target" if number < targets else "guard")
        results.append(found)
    pairs = [
        PairedEval(
            each.name, each.KIND, "target" if number < targets else "guard", chance_of(each, items), old.rows, new.rows
        )
        for number, ((each, items), old, new) in enumerate(zip(work, *results, strict=True))
        if items
    ]
    return pairs, PairedProse(*prose)


def _integrity(
    lab: Lab,
    before: Checkpoint,
    after: Checkpoint,
    dataset: Dataset | None,
    items: Sequence[tuple[str, Sequence[Item]]],
) -> list[IntegrityCheck]:
    """The four checks; a successor without a data set or with another parent fails its lineage."""
    from cli.data import files_of
    from model.checkpoints import folder_of, hash_files, tree_sha256
    from model.compare import IntegrityCheck, contamination_check, holdout_check, identity_check, lineage_check
    from model.contamination import ContaminationIndex
    from model.dataset import check_dataset

    old, new = folder_of(lab, before), folder_of(lab, after)
    facts: dict[str, tuple[object, object]] = {
        "parent": (after.parent_id, before.id),
        "successor's files": (after.sha256, tree_sha256(hash_files(new))),
        "data set": (after.dataset_id, dataset.id if dataset is not None else None),
    }
    if dataset is None:
        contamination = IntegrityCheck("contamination", False, "the successor names no data set to look into")
    else:
        facts["recipe"] = (after.recipe_sha256, dataset.recipe_sha256)
        facts["parent of the data"] = (dataset.checkpoint_id, before.id)
        with files_of(lab, dataset) as folder:
            checked = check_dataset(folder, ContaminationIndex(items))
        contamination = contamination_check(checked.rows, [*checked.hits, *checked.faults])
    return [contamination, identity_check(old, new), lineage_check(facts), holdout_check(1, 1)]


def _dataset(lab: Lab, checkpoint: Checkpoint) -> Dataset | None:
    from workspace.tables import Dataset

    with lab.ledger.read() as session:
        return session.get(Dataset, checkpoint.dataset_id) if checkpoint.dataset_id is not None else None


def _trained_keys(lab: Lab, dataset: Dataset | None) -> set[str]:
    """Keys of the rows that the successor saw: fresh items must not be among them."""
    from cli.data import files_of
    from model.dataset import PARQUET, read_rows

    if dataset is None:
        return set()
    with files_of(lab, dataset) as folder:
        return {row.key for row in read_rows(folder / PARQUET)}


def _store(lab: Lab, checkpoint: Checkpoint, result: EvalResult, items: Sequence[Item], role: str) -> None:
    """One EvalRun with its items and replies as JSON lines."""
    from workspace.tables import EvalRun

    if not result.rows:
        return
    by_key = {item.key: item for item in items}
    lines = [json.dumps({**by_key[row.key].to_json(), **row.to_json()}, ensure_ascii=False) for row in result.rows]
    sha256 = lab.artifacts.put_bytes("\n".join(lines).encode(), "eval-rows")
    run = EvalRun(
        checkpoint_id=checkpoint.id or 0, eval=result.eval, role=role, count=len(result.rows), strict=result.accuracy,
        stderr=result.stderr, lenient=result.lenient, rows_sha256=sha256,
    )  # fmt: skip
    with lab.ledger.write() as session:
        session.add(run)
