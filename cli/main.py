"""The command ``nightshift``: puts the command groups together, one file each, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.rooms import ForeignPackage, check_rooms


def version() -> str:
    from importlib import metadata

    return metadata.version("nightshift-research")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nightshift {version()}")
        raise typer.Exit


def build() -> typer.Typer:
    """The whole application. Importing it must stay fast: heavy libraries are imported where they are used."""
    from cli import data, db, doctor, eval, init, kernel, model, night, posttrain, project, report, review, serve  # noqa: A004

    app = typer.Typer(
        name="nightshift",
        help="At night the model works on its own successor; in the morning people decide.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog="Every command finds the lab by --lab DIR, NIGHTSHIFT_LAB, or the nearest folder with nightshift.toml.",
    )

    @app.callback()
    def start(
        lab: Annotated[Path | None, typer.Option("--lab", metavar="DIR", help="The lab to work in.")] = None,
        show: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
        ] = False,
    ) -> None:
        """Taken from the command line by ``run`` before it gets here; declared for the help and for completion."""

    for command in (init.init, doctor.doctor, night.night, posttrain.posttrain, serve.serve, report.report):
        app.command()(command)
    groups = {"kernel": kernel, "data": data, "eval": eval, "model": model, "project": project, "review": review}
    for name, group in {**groups, "db": db}.items():
        app.add_typer(group.app, name=name)
    return app


def take_lab(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """``--lab DIR`` may stand anywhere before a ``--``: (its value, the other arguments)."""
    rest: list[str] = []
    lab: Path | None = None
    words = iter(arguments)
    for word in words:
        if word == "--":
            return lab, [*rest, word, *words]
        if word == "--lab":
            value = next(words, None)
            if value is None:
                return lab, [*rest, word]  # the parser says that its value is missing
            lab = Path(value)
        elif word.startswith("--lab="):
            lab = Path(word.removeprefix("--lab="))
        else:
            rest.append(word)
    return lab, rest


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        check_rooms()
    except ForeignPackage as error:
        sys.stderr.write(f"nightshift: {error.message}\n  remedy: {error.remedy}\n")
        return 3
    from cli import common

    lab, rest = take_lab(arguments)
    common.begin(lab, as_json="--json" in rest)
    try:
        with common.handle_errors():
            result = build()(args=rest, prog_name="nightshift", standalone_mode=False)
            if result == common.INTERRUPTED:  # Typer's word for Ctrl-C
                raise KeyboardInterrupt
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        common.begin(None, as_json=False)
    return result if isinstance(result, int) else 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
