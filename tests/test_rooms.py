"""The house rules that a program can check: imports go down only, files stay short, no path of somebody's machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("workspace", "kernels", "model", "agents", "flows", "review", "cli")  # from the bottom up
MOST_LINES = 600
# Reached from a sandbox's command line, where a room may only see what is mounted beside it.
TEXT = {".py", ".toml", ".md", ".sh", ".txt", ".html", ".css", ".js", ".json", ".mako", ""}
MACHINE_PATH = re.compile(r"(?<![\w.@-])/(?:root|home/\w+|work|Users/\w+|mnt|srv)/")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(module, line) of every import, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            yield node.module or "", node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value), node.lineno


def upward(path: Path, text: str) -> list[str]:
    """Imports of a room above the one that ``path`` lies in (or of the tests)."""
    room = path.relative_to(ROOT).parts[0]
    above = {*FLOORS[FLOORS.index(room) + 1 :], "tests", "bench"}
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for name, line in imported(ast.parse(text))
        if name.split(".")[0] in above
    ]


def test_imports_go_down_only() -> None:
    wrong = [found for path in sources(*FLOORS) for found in upward(path, path.read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    ["import flows", "from review.facts import Check", "def f():\n    import cli.main", "from tests import conftest"],
)
def test_the_check_sees_upward_imports(text: str) -> None:
    assert upward(ROOT / "model" / "example.py", text)


def test_starter_evals_of_a_lab_use_only_what_a_lab_may() -> None:
    """They are copied into labs: they may rely on ``model.items``, the standard library and public packages."""
    for path in sources("model/starter"):
        rooms = {name for name, _line in imported(ast.parse(path.read_text())) if name.split(".")[0] in FLOORS}
        assert rooms <= {"model.items", "model.scoring", "model.starter"}, f"{path}: {rooms}"


def test_files_and_functions_stay_short() -> None:
    long = []
    for path in sources(*FLOORS, "tests", "bench"):
        text = path.read_text()
        if (lines := text.count("\n")) > MOST_LINES:
            long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        if "migrations/versions" in str(path) or path.is_relative_to(ROOT / "tests"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 60:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines")
    assert not long, "\n".join(long)


def tracked() -> Iterator[Path]:
    """Every text file of the product."""
    skipped = {".git", ".venv", "lab", "shared", "node_modules", "build", "dist"}
    for folder in sorted(path for path in ROOT.iterdir() if path.name not in skipped):
        for path in [folder] if folder.is_file() else folder.rglob("*"):
            if path.is_file() and path.suffix in TEXT and "_cache" not in str(path):
                yield path


def test_no_path_of_somebodys_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()[:100]}"
        for path in tracked()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, "\n".join(found)


def test_every_room_is_in_the_package() -> None:
    import tomllib

    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert sorted(built["packages"]) == sorted(FLOORS)
