"""``nightshift init DIR``: makes a lab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common import JsonOption, emit


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    as_json: JsonOption = False,
) -> None:
    """Make a lab: git repository, starter kernels, evals, recipes, settings, ledger. Does nothing to a lab."""
    from flows.starter import starter_files
    from workspace.lab import STATE, Lab, create_lab
    from workspace.settings import FILE

    root = directory.resolve()
    unfinished = (root / STATE / "making").exists()
    made = unfinished or not (root / FILE).is_file()
    lab = create_lab(root, starter_files(root.name)) if made else Lab(root)
    document = {
        "lab": str(root),
        "lab_id": lab.lab_id,
        "made": made,
        "commit": lab.git.head(),
        "kernels": _names(root / "kernels"),
        "evals": _names(root / "evals"),
        "recipes": _names(root / "recipes"),
        "families": sorted(lab.settings.survey.families),
    }
    emit(document, as_json, lambda: _text(document))


def _names(folder: Path) -> list[str]:
    """Names of what a person may add to: one file or folder each."""
    if not folder.is_dir():
        return []
    return sorted(path.stem for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def _text(document: dict[str, Any]) -> str:
    if not document["made"]:
        return f"{document['lab']} is a lab already; nothing was changed."
    lines = [f"Made the lab {document['lab']} (git commit {document['commit'][:12]})"]
    lines += [f"  {what:<9} {', '.join(document[what])}" for what in ("kernels", "evals", "recipes", "families")]
    lab = document["lab"]
    return "\n".join(
        [
            *lines,
            "Next:",
            f"  nightshift --lab {lab} doctor    is everything here that a night needs?",
            f"  nightshift --lab {lab} night     one night, now",
            f"  nightshift --lab {lab} serve     every night, and the review pages",
        ]
    )
