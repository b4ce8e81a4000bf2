"""Moves: distinct, legal, never the incumbent; the same again from the record, without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlmodel import col, select

import agents.ask
from agents.kernel_author import FailedMove, Move, propose_moves
from agents.record import Recorder
from kernels.library import STARTER_DIR, load_task
from kernels.space import Cell, parse_schedules
from kernels.task import Task
from model.language_model import LanguageModel
from tests.model.conftest import write_tiny_model
from workspace.lab import Lab
from workspace.tables import ModelCall

CELLS: list[Cell] = [("sm_90", 4096), ("sm_80", 6144)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_model(folder)
    return LanguageModel.load(folder)


@pytest.fixture(scope="module")
def task() -> Task:
    return load_task(STARTER_DIR / "rmsnorm")


@pytest.fixture(scope="module")
def source() -> str:
    return (STARTER_DIR / "rmsnorm" / "kernel.py").read_text()


def spelled(moves: list[Move]) -> set[str]:
    return {json.dumps([move.cell, move.schedule], sort_keys=True) for move in moves}


def test_as_many_distinct_legal_moves_as_wanted(
    model: LanguageModel, task: Task, source: str, lab: Lab, night_id: int
) -> None:
    moves = propose_moves(model, task, source, CELLS, [], 9, 3, Recorder(lab, night_id, "kernel_author"))
    table = parse_schedules(source)
    assert len(moves) == len(spelled(moves)) == 9
    for move in moves:
        assert task.space.violation(move.schedule, move.size) is None
        assert move.schedule != table[move.cell].schedule
        assert Move.from_json(json.loads(json.dumps(move.to_json()))) == move
    assert sorted(move.cell for move in moves) == sorted([CELLS[0]] * 5 + [CELLS[1]] * 4)
    with lab.ledger.read() as session:
        calls = {row.id: row for row in session.exec(select(ModelCall).order_by(col(ModelCall.id)))}
    kinds = {"drawn": "draw", "ranked": "rank"}
    for move in moves:
        assert lab.artifacts.get_json(calls[move.model_call_id].request_sha256)["kind"] == kinds[move.how]


def test_a_small_space_is_emptied_and_no_more(
    model: LanguageModel, task: Task, source: str, lab: Lab, night_id: int
) -> None:
    cell = CELLS[0]
    legal = task.space.moves(cell[1])
    failed = [FailedMove(cell, schedule, "numerical-mismatch") for schedule in legal[:50]]
    moves = propose_moves(model, task, source, [cell], failed, 1000, 3, Recorder(lab, night_id, "kernel_author"))
    incumbent = parse_schedules(source)[cell].schedule
    expected = [schedule for schedule in legal[50:] if schedule != incumbent]
    key = lambda schedule: json.dumps(schedule, sort_keys=True)  # noqa: E731
    assert sorted(map(key, (move.schedule for move in moves))) == sorted(map(key, expected))


def test_the_record_gives_the_same_moves_without_a_model(
    model: LanguageModel, task: Task, source: str, lab: Lab, night_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = propose_moves(model, task, source, CELLS, ["timeout"], 6, 11, Recorder(lab, night_id, "kernel_author"))

    def no_model(*_args: object, **_named: object) -> None:
        raise AssertionError("the model was asked again")

    monkeypatch.setattr(agents.ask, "propose_json", no_model)
    monkeypatch.setattr(agents.ask, "score_json", no_model)
    again = propose_moves(model, task, source, CELLS, ["timeout"], 6, 11, Recorder(lab, night_id, "kernel_author"))
    assert again == first


def test_the_model_is_told_what_there_is_to_know(
    model: LanguageModel, task: Task, source: str, lab: Lab, night_id: int
) -> None:
    cell = CELLS[0]
    failed = FailedMove(cell, task.space.moves(cell[1])[3], "out-of-memory")
    costs: dict[Cell, dict[str, float | int | str]] = {
        cell: {"time_us": 14.913, "occupancy": 0.25, "limited_by": "memory"}
    }
    recorder = Recorder(lab, night_id, "kernel_author")
    propose_moves(model, task, source, [cell], [failed, "block 64: timeout"], 2, 1, recorder, costs=costs)
    with lab.ledger.read() as session:
        row = session.exec(select(ModelCall).order_by(col(ModelCall.id))).first()
    assert row is not None
    prompt = "\n".join(
        part["text"] for message in lab.artifacts.get_json(row.request_sha256)["messages"] for part in message["parts"]
    )
    incumbent = parse_schedules(source)[cell].schedule
    for piece in (
        task.equation, "sm_90", "4096", json.dumps(incumbent), "time_us 14.91", "limited_by memory",
        "out-of-memory", json.dumps(failed.schedule), "block 64: timeout", "num_warps: 1, 2, 4",
    ):  # fmt: skip
        assert piece in prompt
    assert "held" not in prompt


@pytest.mark.slow
def test_the_embedded_model_proposes(task: Task, source: str, lab: Lab, night_id: int, tmp_path: Path) -> None:
    from model.embedded import convert_embedded

    embedded = LanguageModel.load(convert_embedded(tmp_path / "m0").directory)
    moves = propose_moves(embedded, task, source, CELLS[:1], [], 4, 5, Recorder(lab, night_id, "kernel_author"))
    assert len(spelled(moves)) == 4
    assert all(task.space.violation(move.schedule, move.size) is None for move in moves)
