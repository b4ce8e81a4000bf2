"""``nightshift db``: migrations, integrity, backup and restore, moving the ledger to another database."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.common import EXIT_NEGATIVE, JsonOption, YesOption, ask, emit, open_lab, progress, table
from workspace.errors import SurroundingsError, UserError

if TYPE_CHECKING:
    from workspace.lab import Lab
    from workspace.ledger import Ledger

app = typer.Typer(help="The ledger: migrations, integrity, backups, another database.", no_args_is_help=True)
FileArgument = Annotated[Path, typer.Argument(metavar="FILE")]


@contextmanager
def _raw_ledger(lab: Lab, *, must_exist: bool = True) -> Iterator[Ledger]:
    """The ledger as it is, whatever its schema (``lab.ledger`` insists on the newest)."""
    from workspace.ledger import Ledger

    file = lab.state / "ledger.db"
    if must_exist and lab.settings.ledger.url is None and not file.is_file():
        raise SurroundingsError(
            f"{file} is missing", remedy="nightshift db restore FILE, or db upgrade for an empty one"
        )
    lab.state.mkdir(exist_ok=True)
    ledger = Ledger(lab.ledger_url)
    try:
        yield ledger
    finally:
        ledger.dispose()


def _sqlite_file(lab: Lab, command: str) -> Path:
    if not lab.ledger_url.startswith("sqlite:///"):
        raise UserError(
            f"db {command} copies SQLite files; this ledger is elsewhere", field="ledger.url",
            value=_hidden(lab.ledger_url), remedy="use the database's own tools, e.g. pg_dump and pg_restore",
        )  # fmt: skip
    file = Path(lab.ledger_url.removeprefix("sqlite:///"))
    return file if file.is_absolute() else Path.cwd() / file


def _hidden(url: str) -> str:
    """A URL without its password."""
    from sqlalchemy.engine import make_url

    return make_url(url).render_as_string(hide_password=True)


@app.command()
def upgrade(as_json: JsonOption = False) -> None:
    """Bring the schema to this program's newest migration."""
    lab = open_lab()
    with _raw_ledger(lab, must_exist=False) as ledger:
        before = ledger.revision()
        ledger.upgrade()
        document = {"before": before, "after": ledger.revision()}
    same = document["before"] == document["after"]
    emit(document, as_json, lambda: f"ledger at {document['after']}" + (" already" if same else f", was {before}"))


@app.command()
def check(
    deep: Annotated[bool, typer.Option("--deep", help="Hash every artifact and checkpoint, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Integrity, missing files, broken lineage, stale leases. Exit 1 if something is wrong."""
    from workspace.ledger_check import check_ledger, faults

    lab = open_lab()
    with _raw_ledger(lab) as ledger:
        findings = check_ledger(ledger, lab.state / "artifacts", lab.checkpoints_dir, deep=deep)
    wrong = faults(findings)
    document = {"ok": not wrong, "findings": [asdict(finding) for finding in findings]}

    def text() -> str:
        head = f"{len(wrong)} faults" if wrong else "the ledger is whole"
        if not findings:
            return head
        rows = [(finding.level, finding.code, finding.row, finding.detail) for finding in findings]
        return f"{head}\n{table(('level', 'code', 'row', 'detail'), rows)}"

    emit(document, as_json, text)
    if wrong:
        raise typer.Exit(EXIT_NEGATIVE)


@app.command()
def backup(file: FileArgument, as_json: JsonOption = False) -> None:
    """Copy the ledger to FILE, consistently, while it may be in use. Artifacts and checkpoints are not in it."""
    lab = open_lab()
    source = _sqlite_file(lab, "backup")
    if file.exists():
        raise UserError("the file exists already", field="FILE", value=str(file), allowed="a new name")
    if not file.parent.is_dir():
        raise UserError("the folder does not exist", field="FILE", value=str(file))
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    with _raw_ledger(lab):  # says what is missing
        try:
            _copy(source, aside)
            with closing(sqlite3.connect(aside)) as connection:
                connection.execute("PRAGMA journal_mode=DELETE")  # one file, nothing beside it
            with aside.open("rb") as stream:
                os.fsync(stream.fileno())
            aside.replace(file)
        finally:
            aside.unlink(missing_ok=True)
    document = {"file": str(file.resolve()), "size_bytes": file.stat().st_size}
    emit(document, as_json, lambda: f"wrote {document['file']} ({document['size_bytes']} bytes)")


@app.command()
def restore(file: FileArgument, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Put a backup in the ledger's place. The present ledger is kept beside it."""
    from workspace.lock import exclusive

    lab = open_lab()
    target = _sqlite_file(lab, "restore")
    _check_backup(file)
    ask(f"Replace the ledger {target} by {file}?", yes=yes)
    with exclusive(lab.state / "night.lock", "a night"):
        kept = _keep(target)
        _copy(file, target)  # one transaction: killed in the middle, the old content stays
    with _raw_ledger(lab) as ledger:
        revision, newest = ledger.revision(), ledger.newest_revision()
    document = {"ledger": str(target), "kept": kept, "revision": revision, "newest": newest}
    then = "" if revision == newest else "\nIt is of an older schema: nightshift db upgrade"
    emit(document, as_json, lambda: f"restored {target}; the one before is {kept or 'none'}{then}")


def _keep(target: Path) -> Path | None:
    """Copy the present ledger beside itself; one that is too damaged to be read is moved there."""
    if not target.is_file():
        return None
    number = 1
    while (kept := target.with_name(f"{target.name}.before-restore-{number}")).exists():
        number += 1
    try:
        _copy(target, kept)
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal", "-shm"):
            side = target.with_name(target.name + suffix)
            if side.exists():
                side.replace(kept.with_name(kept.name + suffix))
    return kept


def _check_backup(file: Path) -> None:
    if not file.is_file():
        raise UserError("no such file", field="FILE", value=str(file))
    try:
        with closing(sqlite3.connect(f"file:{file.resolve()}?mode=ro", uri=True)) as connection:
            whole = connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            ours = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise UserError(f"not an SQLite database: {error}", field="FILE", value=str(file)) from None
    if not whole or not ours:
        reason = "is damaged" if not whole else "is no ledger"
        raise UserError(f"this file {reason}", field="FILE", value=str(file), allowed="what db backup wrote")


def _copy(source: Path, target: Path) -> None:
    """SQLite's own online copy, in one transaction; errors of the disk come as SurroundingsError."""
    try:
        with (
            closing(sqlite3.connect(f"file:{source.resolve()}?mode=ro", uri=True)) as reader,
            closing(sqlite3.connect(target, timeout=30)) as writer,
        ):
            reader.backup(writer)
    except sqlite3.OperationalError as error:
        raise SurroundingsError(
            f"cannot copy {source} to {target}: {error}", remedy="check free space and permissions there"
        ) from error


@app.command()
def move(
    url: Annotated[str, typer.Argument(metavar="URL", help="Any SQLAlchemy URL of an empty database.")],
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy the ledger into another database (PostgreSQL, another file) and say which setting points there."""
    from workspace.lock import exclusive

    lab = open_lab()
    target = _target(url)
    try:
        if target.revision() is not None:
            raise UserError("there is a ledger already", field="URL", value=_hidden(url), allowed="an empty database")
        ask(f"Copy the ledger of {lab.root} to {_hidden(url)}?", yes=yes)
        with exclusive(lab.state / "night.lock", "a night"), _raw_ledger(lab) as source:
            document = _move(source, target, url)
    finally:
        target.dispose()
    emit(document, as_json, lambda: _moved(document))


def _target(url: str) -> Ledger:
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    from workspace.ledger import Ledger

    try:
        return Ledger(url)
    except (ArgumentError, NoSuchModuleError) as error:
        raise UserError(
            str(error), field="URL", value=url, allowed="e.g. postgresql+psycopg://user@host/name"
        ) from None
    except ModuleNotFoundError as error:
        raise SurroundingsError(
            f"the driver {error.name} is not installed", remedy=f"pip install {error.name}"
        ) from None


def _move(source: Ledger, target: Ledger, url: str) -> dict[str, Any]:
    from workspace.ledger_check import copy_rows, row_counts

    if source.revision() != source.newest_revision():
        raise SurroundingsError("the ledger's schema is not the newest", remedy="nightshift db upgrade")
    target.upgrade()
    with progress("copying rows") as step:
        copied = copy_rows(source, target, lambda name, count: step(count, text=name))
    before, after = row_counts(source), row_counts(target)
    if before != after:
        wrong = [name for name in before if before[name] != after.get(name)]
        raise SurroundingsError(f"the copy differs in {', '.join(wrong)}", remedy="empty the database, then try again")
    return {"url": _hidden(url), "rows": copied, "tables": after, "setting": {"ledger": {"url": _hidden(url)}}}


def _moved(document: dict[str, Any]) -> str:
    return "\n".join(
        [
            f"copied {document['rows']} rows to {document['url']}; the old ledger is untouched.",
            "To use it, set in nightshift.toml and commit:",
            "  [ledger]",
            f'  url = "{document["url"]}"',
        ]
    )
