"""`report` and `review` on the command line: documents, exit codes, questions."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from cli import common, report, review
from tests.review import factory
from tests.review.factory import Night
from workspace.lab import Lab


@pytest.fixture(scope="module")
def template(_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Night:
    made = factory.fill(factory.make_lab(tmp_path_factory.mktemp("template") / "lab"))
    made.lab.ledger.dispose()
    return made


@pytest.fixture
def night(template: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    """A lab with one night, which is the current folder."""
    shutil.copytree(template.lab.root, tmp_path / "lab")
    monkeypatch.chdir(tmp_path / "lab")
    lab = Lab(tmp_path / "lab")
    yield replace(template, lab=lab)
    lab.ledger.dispose()


class Terminal:
    """Runs one command line as the program does, up to its exit code."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command("report")(report.report)
        app.add_typer(review.app, name="review")
        words = [str(a) for a in arguments]
        common.begin(None, "--json" in words)
        self._capsys.readouterr()
        try:
            with common.handle_errors():
                app(args=words, standalone_mode=False)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, *arguments: object) -> object:
        assert self(*arguments, "--json") == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def test_report_in_the_terminal_as_json_and_as_a_file(night: Night, run: Terminal, tmp_path: Path) -> None:
    assert run("report") == 0
    assert "Promote" in run.out
    document = run.json("report", night.night_id)
    assert isinstance(document, dict)
    assert document["decision"]["headline"] == "promote"
    assert run("report", "--html", tmp_path / "report.html") == 0
    assert run.out == ""
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_report_refuses_what_is_not_there(night: Night, run: Terminal, tmp_path: Path) -> None:
    assert run("report", 99) == 2
    assert "allowed: 1" in run.err
    assert run("report", "--html", tmp_path / "missing" / "report.html") == 2
    assert "--html" in run.err


def test_list_show_and_diff(night: Night, run: Terminal) -> None:
    listed = run.json("review", "list")
    assert isinstance(listed, list)
    assert {item["id"] for item in listed} == {night.successor, *night.patches}
    assert run("review", "list") == 0
    assert "awaiting review" in run.out
    shown = run.json("review", "show", night.patches[0])
    assert isinstance(shown, dict)
    assert {"level", "judge", "figures", "diff_stat", "trailers"} <= set(shown)
    assert run("review", "show", night.patches[0]) == 0
    assert "compiled (unmeasured)" in run.out
    assert "Nightshift-Candidate" in run.out
    assert run("review", "diff", night.patches[0]) == 0
    assert "+++ b/kernels/rmsnorm/kernel.py" in run.out
    assert run("review", "show", 99) == 2


def test_approve_then_merge(night: Night, run: Terminal) -> None:
    number = night.patches[0]
    assert run("review", "merge", number, "--yes") == 2
    assert "approve" in run.err
    approved = run.json("review", "approve", number)
    assert isinstance(approved, dict)
    assert approved["status"] == "approved"
    assert run("review", "merge", number, "--yes") == 2
    assert "--accept-unmeasured" in run.err
    merged = run.json("review", "merge", number, "--yes", "--accept-unmeasured")
    assert isinstance(merged, dict)
    assert merged["effect"] == "git merge"
    assert run("review", "merge", number) == 0  # nothing left to ask
    assert "already merged" in run.out


def test_merge_asks_and_no_is_130(night: Night, run: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("review", "approve", night.successor) == 0
    for answer, code in (("n\n", 130), ("y\n", 0)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert run("review", "merge", night.successor) == code
    assert "m1 is the model of the next night" in run.out


def test_reject_and_request_changes_need_a_reason(night: Night, run: Terminal) -> None:
    first, second = night.patches
    assert run("review", "reject", first) == 2
    assert "--reason" in run.err
    assert run("review", "reject", first, "--reason", " ") == 2
    assert run("review", "reject", first, "--reason", "spills") == 0
    assert run("review", "request-changes", second, "--reason", "try 16 warps") == 0
    listed = run.json("review", "list")
    assert isinstance(listed, list)
    assert {item["id"]: item["status"] for item in listed} == {
        night.successor: "awaiting_review",
        second: "changes_requested",
    }
