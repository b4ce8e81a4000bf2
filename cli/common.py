"""What every command shares: finding the lab, printing facts and JSON, progress, questions, errors and exit codes.

Facts go to standard output; progress, notes and errors to standard error.  With ``--json`` standard output holds
exactly one JSON document; when a command fails before it printed one, that document is
``{"error": {"message", "field", "remedy", "exit"}}``.

Exit codes: 0 done or judged positive, 1 judged negative, 2 the command or a file given to it is wrong, 3 the
surroundings are (and a fault of ours, whose traceback is then in a log file), 130 interrupted or answered "no".
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from workspace.errors import Interrupted, NightshiftError, SurroundingsError, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from workspace.lab import Lab

EXIT_NEGATIVE = 1
INTERRUPTED = 130
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PLAIN_PROGRESS_EVERY_S = 10.0

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
LabOption = Annotated[Path | None, typer.Option("--lab", metavar="DIR", help="The lab to work in.")]


@dataclass
class _Run:
    """What this run of the command line was told, and whether its JSON document is out."""

    lab: Path | None = None
    json: bool = False
    json_printed: bool = False


_run = _Run()


def begin(lab: Path | None, as_json: bool) -> None:
    """Start of a run: the global ``--lab`` and whether ``--json`` was asked for."""
    _run.lab, _run.json, _run.json_printed = lab, as_json, False


def open_lab(lab: Path | None = None, profile: str = "default") -> Lab:
    """The lab of ``--lab``, ``NIGHTSHIFT_LAB`` or the nearest parent folder; UserError if there is none."""
    from workspace.lab import Lab

    return Lab.find(_run.lab or lab, profile)


def lab_dir() -> Path | None:
    """Where the lab would be found, without opening it (its settings may be broken)."""
    from workspace.settings import FILE

    named = _run.lab or (Path(os.environ["NIGHTSHIFT_LAB"]) if os.environ.get("NIGHTSHIFT_LAB") else None)
    if named is not None:
        return named.resolve()
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / FILE).is_file()), None)


# Facts


def say(text: str = "") -> None:
    """One line of facts on standard output."""
    typer.echo(text)


def note(text: str) -> None:
    """One line for the person at the terminal, on standard error."""
    typer.echo(text, err=True)


def emit_json(document: Any) -> None:
    """Print the run's one JSON document. NaN and infinity are not JSON: they raise ValueError."""
    _run.json_printed = True
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def emit(document: Any, as_json: bool, text: Callable[[], str]) -> None:
    """The document with ``--json``, else the text that says the same."""
    if as_json:
        emit_json(document)
    else:
        say(text())


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns of plain text; as wide as they need to be when standard output is not a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        grid.add_column(header, overflow="fold")
    for row in rows:
        grid.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 10_000)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


def console() -> Console:
    """A rich console on standard error; honours ``NO_COLOR``."""
    from rich.console import Console

    return Console(stderr=True)


def ask(question: str, *, yes: bool) -> None:
    """Go on if ``yes`` or the person says so; Interrupted (exit 130) otherwise, and when nobody can answer."""
    if yes:
        return
    sys.stderr.write(f"{question} [y/N] ")  # typer.confirm leaves a space on standard output
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise Interrupted("nobody answered", remedy="repeat it with --yes")
    if answer.strip().lower() not in ("y", "yes"):
        raise Interrupted("answered no; nothing was changed")


@contextmanager
def progress(title: str, total: float | None = None) -> Iterator[Callable[..., None]]:
    """Progress on standard error: ``step(done, total=None, text="")`` may be called as often as one likes.

    A bar with an ETA on a terminal; elsewhere one plain line every ten seconds.
    """
    if sys.stderr.isatty():
        with _bar(title, total) as bar_step:
            yield bar_step
        return
    begun = last = time.monotonic()

    def step(done: float, total: float | None = total, text: str = "") -> None:
        nonlocal last
        moment = time.monotonic()
        if moment - last < PLAIN_PROGRESS_EVERY_S:
            return
        last = moment
        left = f", about {(moment - begun) * (total - done) / done:.0f} s left" if total and done else ""
        of = f" {done:g} of {total:g}" if total else ""
        note(f"{title}:{of}{' ' + text if text else ''} after {moment - begun:.0f} s{left}")

    yield step


@contextmanager
def _bar(title: str, total: float | None) -> Iterator[Callable[..., None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console(), transient=True) as bars:
        task = bars.add_task(title, total=total, text="")

        def step(done: float, total: float | None = total, text: str = "") -> None:
            bars.update(task, completed=done, total=total, text=text)

        yield step


# Errors


@contextmanager
def handle_errors() -> Iterator[None]:
    """Turn every way in which a command can fail into one line with its remedy and ``SystemExit(code)``."""
    try:
        yield
    except NightshiftError as error:
        _fail(error.message if not isinstance(error, UserError) else _user_text(error), error)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", Interrupted("what was finished is kept; the same command goes on from there"))
    except typer.TyperException as error:  # usage errors of the command line itself
        _usage(error)
    except BrokenPipeError:  # the reader of our output went away, as in `nightshift report | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        if error.errno not in NO_SPACE:
            _crash(error)
        where = f" (writing {error.filename})" if error.filename else ""
        _fail(f"the disk is full{where}: {error.strerror}", _full_disk())
    except Exception as error:  # noqa: BLE001 - the last stop: nothing may reach a person as a traceback
        _database_or_crash(error)


def _database_or_crash(error: Exception) -> NoReturn:
    """The ledger's own errors have a remedy; anything else is a fault of ours."""
    alchemy = sys.modules.get("sqlalchemy.exc")
    if alchemy is not None and isinstance(error, alchemy.DBAPIError):
        reason = str(error.orig).lower()
        if "locked" in reason or "busy" in reason:
            remedy = "wait for the other nightshift command, or see who holds it: fuser -v .nightshift/ledger.db"
            _fail("the ledger is locked by another process", SurroundingsError("", remedy=remedy))
        if "full" in reason or "disk i/o" in reason:
            _fail(f"the ledger cannot be written: {error.orig}", _full_disk())
        if "malformed" in reason or "not a database" in reason:
            remedy = "nightshift db check says what is broken; nightshift db restore FILE brings a backup back"
            _fail(f"the ledger is damaged: {error.orig}", SurroundingsError("", remedy=remedy))
    _crash(error)


def _full_disk() -> SurroundingsError:
    return SurroundingsError(
        "", remedy="free some space (nightshift doctor shows where), then run the same command again"
    )


def _user_text(error: UserError) -> str:
    text = str(error)
    return text.split("\n  remedy: ", maxsplit=1)[0] if error.remedy else text


def _usage(error: typer.TyperException) -> NoReturn:
    context = getattr(error, "ctx", None)
    help_command = f"{context.command_path} --help" if context is not None else "nightshift --help"
    param = getattr(error, "param", None)
    field = getattr(error, "option_name", "") or (param.name if param is not None else "")
    if type(error).__name__ == "NoArgsIsHelpError":
        note(error.format_message())
        raise SystemExit(UserError.exit_code)
    _fail(error.format_message(), UserError(error.format_message(), field=field or "", remedy=help_command))


def _crash(error: Exception) -> NoReturn:
    """A mistake of the program: traceback to a file, one line to the person."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    text = "".join(traceback.format_exception(error))
    for folder in _log_folders():
        path = folder / f"crash-{stamp}-{os.getpid()}.log"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(f"nightshift {' '.join(sys.argv[1:])}\n\n{text}")
            remedy = f"report it with {path}"
            break
    else:
        note(text)
        remedy = "report it with the traceback above"
    what = f"a fault in Nightshift itself: {type(error).__name__}: {error}"
    _fail(what.splitlines()[0], SurroundingsError(what, remedy=remedy))


def _log_folders() -> list[Path]:
    from workspace.lab import STATE, home

    lab = lab_dir()
    return [*([lab / STATE / "logs"] if lab is not None and (lab / STATE).is_dir() else []), home() / "logs"]


def _fail(text: str, error: NightshiftError) -> NoReturn:
    remedy = error.remedy or (error.message if isinstance(error, Interrupted) and error.message != text else "")
    note(f"nightshift: {text}")
    if remedy:
        note(f"  remedy: {remedy}")
    if _run.json and not _run.json_printed:
        field = error.field if isinstance(error, UserError) else ""
        emit_json({"error": {"message": text, "field": field, "remedy": remedy, "exit": error.exit_code}})
    raise SystemExit(error.exit_code)
