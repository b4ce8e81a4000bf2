"""`nightshift report [NIGHT]`: the morning report in the terminal, as JSON, or as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.common import JsonOption, LabOption, emit_json, note, open_lab


def report(
    night: Annotated[
        int | None, typer.Argument(metavar="[NIGHT]", help="Number of a night; the newest if left out.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one self-contained HTML file.")
    ] = None,
    as_json: JsonOption = False,
    lab: LabOption = None,
) -> None:
    """Show the report of a night; one that still runs or crashed has a report, too."""
    from review.report import collect_report

    found = collect_report(open_lab(lab), night)
    if html is not None:
        from review.html import report_page

        page = report_page(found)
        write_html(page, html)
        note(f"wrote {html} ({len(page.encode()) // 1024} KiB)")
    if as_json:
        emit_json(found.to_json())
    elif html is None:
        from rich.console import Console

        from review.text import print_report

        print_report(found, Console(highlight=False))


def write_html(page: str, path: Path) -> None:
    """Write the page whole or not at all; UserError where the folder is missing or forbidden."""
    from workspace.errors import UserError
    from workspace.files import write_atomically

    if path.is_dir() or not path.resolve().parent.is_dir():
        raise UserError("cannot be written", field="--html", value=str(path), allowed="a file in a folder that exists")
    try:
        write_atomically(path.resolve(), page.encode())
    except PermissionError as error:
        raise UserError(f"cannot be written: {error.strerror}", field="--html", value=str(path)) from None
