"""The whole command line as text, one parameter a line: ``python -m tests.cli.option_tree`` writes the frozen file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

FROZEN = Path(__file__).with_name("options.txt")


def lines(command: Any, path: str) -> Iterator[str]:
    """Depth first: a line for each command, then one for each of its parameters."""
    yield path
    for param in command.params:
        if param.name == "help":
            continue
        names = " ".join([*param.opts, *param.secondary_opts]) if param.param_type_name == "option" else param.name
        kind = "flag" if getattr(param, "is_flag", False) else type_name(param.type_descriptor.annotation)
        notes = ", ".join(["required" if param.required else "optional", *(["many"] if param.multiple else [])])
        yield f"{path} {param.param_type_name} {names}: {kind}, {notes}"
    for name in sorted(getattr(command, "commands", {})):
        yield from lines(command.commands[name], f"{path} {name}")


def type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def render() -> str:
    from typer.main import get_command

    from cli.main import build

    return "\n".join(lines(get_command(build()), "nightshift")) + "\n"


if __name__ == "__main__":
    FROZEN.write_text(render())
