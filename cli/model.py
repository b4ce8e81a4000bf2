"""``nightshift model``: checkpoints, their lineage, promotion and the way back, a copy to use elsewhere, a question."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.common import JsonOption, YesOption, emit, note, open_lab, progress, table
from cli.common import ask as confirm
from workspace.errors import SurroundingsError, UserError

if TYPE_CHECKING:
    from workspace.lab import Lab
    from workspace.tables import Checkpoint

app = typer.Typer(help="Checkpoints: lineage, promotion, export, a question to one.", no_args_is_help=True)
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Name, or the start of its sha256.")]


@app.command("list")
def list_models(as_json: JsonOption = False) -> None:
    """All checkpoints of the lab; the subject is the one that the next night improves."""
    from model.checkpoints import all_checkpoints, describe

    lab = open_lab()
    rows = [describe(lab, row) for row in all_checkpoints(lab)]

    def text() -> str:
        if not rows:
            return "no checkpoint yet: the first night imports m0"
        cells = [
            ["*" if row["subject"] else "", row["name"], row["parent"], row["night"], row["sha256"][:12], row["source"]]
            for row in rows
        ]
        return table(("subject", "name", "parent", "night", "sha256", "source"), cells)

    emit({"checkpoints": rows}, as_json, text)


@app.command()
def show(model: ModelArgument, as_json: JsonOption = False) -> None:
    """One checkpoint: files, source, licence, how it was trained."""
    from model.checkpoints import describe, get

    lab = open_lab()
    document = describe(lab, get(lab, model))

    def text() -> str:
        flat = {**document, "files": ", ".join(sorted(document["files"])), "figures": _figures(document["figures"])}
        return table(("", ""), list(flat.items()))

    emit(document, as_json, text)


def _figures(figures: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in figures.items() if not isinstance(value, list | dict)) or "-"


@app.command()
def lineage(model: ModelArgument, as_json: JsonOption = False) -> None:
    """From this checkpoint back to the imported one, with the data set of each step."""
    from model.checkpoints import describe, get
    from model.checkpoints import lineage as chain

    lab = open_lab()
    rows = [describe(lab, row) for row in chain(lab, get(lab, model))]

    def text() -> str:
        cells = [[row["name"], row["sha256"][:12], row["night"], row["dataset"], row["source"]] for row in rows]
        return table(("name", "sha256", "night", "data set", "source"), cells)

    emit({"lineage": rows}, as_json, text)


@app.command()
def promote(
    model: ModelArgument,
    override: Annotated[
        bool, typer.Option("--override", help="Against the verdict; needs --reason, flagged for ever.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the decision.")] = "",
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make an approved successor the next night's model: the merge of its proposal, named by the model."""
    from model.checkpoints import get
    from review import queue

    lab = open_lab()
    row = get(lab, model)
    number = _approved_proposal(lab, row)
    item = queue.check_merge(lab, number, accept_unmeasured=False, override=override, reason=reason)
    if item.status == "approved":
        confirm(queue.merge_question(item), yes=yes)
    merged = queue.merge(lab, number, accept_unmeasured=False, override=override, reason=reason)
    document = {"model": row.name, "proposal": number, "effect": merged.effect, "flags": list(merged.flags)}
    emit(document, as_json, lambda: f"{row.name} is the model of the next night (proposal {number}, {merged.effect})")


def _approved_proposal(lab: Lab, row: Checkpoint) -> int:
    from sqlmodel import col, select

    from workspace.tables import Proposal

    with lab.ledger.read() as session:
        query = select(Proposal).where(Proposal.checkpoint_id == row.id).order_by(col(Proposal.id).desc())
        proposals = session.exec(query).all()
    for proposal in proposals:
        if proposal.status in ("approved", "merged") and proposal.id is not None:
            return proposal.id
    if proposals:
        newest = proposals[0]
        raise UserError(
            f"proposal {newest.id} for it is {newest.status.replace('_', ' ')}, not approved", field="model",
            value=row.name, remedy=f"nightshift review show {newest.id}, then nightshift review approve {newest.id}",
        )  # fmt: skip
    raise UserError(
        "no proposal asks to promote it", field="model", value=row.name,
        allowed="a successor that a night judged and a person approved; to go back: nightshift model rollback",
    )  # fmt: skip


@app.command()
def rollback(yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Make the subject before the present one the subject again (a new row; nothing is undone in the record)."""
    from model.checkpoints import current
    from model.checkpoints import rollback as roll_back

    lab = open_lab()
    before = current(lab).name
    confirm(f"Take {before} back and return to the subject before it?", yes=yes)
    roll_back(lab, by=lab.git.identity())
    document = {"before": before, "subject": current(lab).name}
    emit(document, as_json, lambda: f"the subject is {document['subject']} again (was {before})")


@app.command()
def export(
    model: ModelArgument,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new or an empty folder.")],
    form: Annotated[
        Literal["safetensors"], typer.Option("--format", help="Stock transformers layout.")
    ] = "safetensors",
    as_json: JsonOption = False,
) -> None:
    """Copy a checkpoint, verified, into a folder that transformers (and what reads its layout) loads."""
    from model.checkpoints import get, verify

    lab = open_lab()
    row = get(lab, model)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError("the folder is not empty", field="--to", value=str(to), allowed="a new or an empty folder")
    verify(lab, row)
    _copy_checkpoint(lab, row, to)
    document = {"model": row.name, "format": form, "to": str(to.resolve()), "files": sorted(row.files)}
    emit(document, as_json, lambda: f"wrote {row.name} to {document['to']} ({len(row.files)} files)")


def _copy_checkpoint(lab: Lab, row: Checkpoint, to: Path) -> None:
    """Copied aside and renamed, so that a folder that is there is complete."""
    from model.checkpoints import folder_of, hash_files, tree_sha256

    folder = folder_of(lab, row)
    to.parent.mkdir(parents=True, exist_ok=True)
    aside = to.parent / f".{to.name}.{os.getpid()}"
    try:
        with progress("copying", len(row.files)) as step:
            for done, name in enumerate(sorted(row.files)):
                step(done, text=name)
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / name, aside / name)
        if tree_sha256(hash_files(aside)) != row.sha256:
            raise SurroundingsError(f"the copy of {row.name} is not what was registered", remedy="check that disk")
        aside.replace(to)  # an empty folder may be in its place
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@app.command()
def ask(
    model: ModelArgument,
    question: Annotated[str, typer.Argument(metavar="QUESTION")],
    tokens: Annotated[int, typer.Option("--tokens", min=1, max=1024, help="Most tokens of the reply.")] = 64,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, max=2.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Ask one checkpoint one question. Nothing is recorded."""
    from model.checkpoints import current, folder_of, get

    if not question.strip():
        raise UserError("the question is empty", field="QUESTION", value=question)
    lab = open_lab()
    subject = current(lab)  # imports m0 where no night has
    row = get(lab, model)
    folder = folder_of(lab, row)
    if not as_json:
        note(f"{row.name}{' (the subject)' if row.id == subject.id else ''}:")
    from model.items import user
    from model.language_model import LanguageModel

    begun = time.monotonic()
    with progress(f"asking {row.name}"):
        loaded = LanguageModel.load(folder, lab.settings.model.threads)
        reply = loaded.reply([[user(question)]], max_new_tokens=tokens, temperature=temperature, seed=seed)[0]
    document = {
        "model": row.name,
        "question": question,
        "reply": reply.text,
        "tokens_in": reply.tokens_in,
        "tokens_out": reply.tokens_out,
        "wall_s": round(time.monotonic() - begun, 3),
    }
    emit(document, as_json, lambda: reply.text)
