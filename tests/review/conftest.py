"""Labs with one night behind them. Each verdict's lab is made once and copied for every test that changes it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.review import factory
from workspace.lab import Lab


@pytest.fixture(scope="session")
def templates(_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], factory.Night]]:
    made: dict[str, factory.Night] = {}

    def template(verdict: str) -> factory.Night:
        if verdict not in made:
            lab = factory.make_lab(tmp_path_factory.mktemp("template") / "lab")
            made[verdict] = factory.fill(lab, verdict=verdict)
        return made[verdict]

    yield template
    for night in made.values():
        night.lab.ledger.dispose()


@pytest.fixture(scope="session")
def promoted(templates: Callable[[str], factory.Night]) -> factory.Night:
    """One night that ended in `promote`, shared by all tests that only read."""
    return templates("promote")


@pytest.fixture(scope="session")
def page(promoted: factory.Night) -> str:
    """The HTML report of ``promoted``."""
    from review.html import report_page
    from review.report import collect_report

    return report_page(collect_report(promoted.lab))


@pytest.fixture
def make_night(
    templates: Callable[[str], factory.Night], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], factory.Night]]:
    """``make_night("promote")`` is a lab of its own with the night of that verdict."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ada Tester")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ada@example.org")
    labs: list[Lab] = []

    def make(verdict: str = "promote") -> factory.Night:
        template = templates(verdict)
        template.lab.ledger.dispose()  # closes the write-ahead log, so that one file holds everything
        root = tmp_path / f"lab{len(labs)}"
        shutil.copytree(template.lab.root, root)
        labs.append(Lab(root))
        return replace(template, lab=labs[-1])

    yield make
    for lab in labs:
        lab.ledger.dispose()


@pytest.fixture
def night(make_night: Callable[[str], factory.Night]) -> factory.Night:
    """One night that ended in `promote`, with two patches and a successor to review."""
    return make_night("promote")
