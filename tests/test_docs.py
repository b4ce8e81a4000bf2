"""What the documents say must exist: every setting is explained, every link leads somewhere, every command is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from tests.cli.option_tree import render
from workspace.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def keys(table: type[BaseModel]) -> Iterator[str]:
    for name, field in table.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation)


def test_every_setting_is_explained() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    missing = [key for key in keys(Settings) if f"`{key}`" not in text and f"`[{key}]`" not in text]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert target.startswith("http") or (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(document: Path) -> None:
    """What follows ``nightshift`` in code must be a command of the option tree."""
    commands = {line for line in render().splitlines() if " option " not in line and " argument " not in line}
    groups = {command.split()[1] for command in commands if len(command.split()) == 3}
    code = re.compile(r"(?:`|bin/)nightshift (?:--lab lab )?([a-z][a-z-]+(?: [a-z][a-z-]+)?)")
    for words in code.findall(document.read_text()):
        first, _, second = words.partition(" ")
        name = f"nightshift {first} {second}" if first in groups and second else f"nightshift {first}"
        assert name in commands, name
