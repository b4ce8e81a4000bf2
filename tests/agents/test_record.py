"""Every call is stored once, paid from a budget, and found again."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from sqlmodel import col, select

from agents.record import Outcome, Recorder, messages_json, redact
from model.items import user
from workspace.budget import Budget, BudgetExceeded
from workspace.lab import Lab
from workspace.tables import Artifact, ModelCall

REQUEST = {"kind": "draw", "messages": messages_json([user("Which block?")]), "count": 2}
CANARY = "sk-canary-5f1e2d3c4b"


class Work:
    """Counts how often the model was asked."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome, self.calls = outcome, 0

    def __call__(self) -> Outcome:
        self.calls += 1
        return self.outcome


DONE = Outcome({"values": [{"block": 512, "a": 1}]}, tokens_in=30, tokens_out=12)


def rows(lab: Lab) -> list[ModelCall]:
    with lab.ledger.read() as session:
        return list(session.exec(select(ModelCall).order_by(col(ModelCall.id))).all())


def test_a_call_is_a_row_with_two_artifacts(lab: Lab, night_id: int) -> None:
    call = Recorder(lab, night_id, "kernel_author").call(REQUEST, Work(DONE), seed=7, max_tokens=100)
    (row,) = rows(lab)
    assert (row.id, row.model, row.endpoint, row.role) == (call.id, "m0", "embedded", "kernel_author")
    assert (row.status, row.attempt, row.seed, row.tokens_in, row.tokens_out, row.usd) == ("done", 1, "7", 30, 12, 0.0)
    assert row.latency_s >= 0
    assert row.reply_sha256 is not None
    stored = lab.artifacts.get_json(row.request_sha256)
    assert stored["messages"] == REQUEST["messages"]
    assert stored["role"] == "kernel_author"
    assert lab.artifacts.get_json(row.reply_sha256) == DONE.reply == call.reply
    with lab.ledger.read() as session:
        assert {session.get_one(Artifact, sha).kind for sha in (row.request_sha256, row.reply_sha256)} == {
            "model-request", "model-reply",
        }  # fmt: skip


def test_a_finished_call_is_read_back_by_another_process(lab: Lab, night_id: int) -> None:
    work = Work(DONE)
    first = Recorder(lab, night_id, "kernel_author").call(REQUEST, work, seed=7, max_tokens=100)
    again = Recorder(lab, night_id, "kernel_author").call(REQUEST, work, seed=7, max_tokens=100)
    assert (again.id, again.reply, again.replayed, first.replayed) == (first.id, DONE.reply, True, False)
    assert work.calls == len(rows(lab)) == 1
    assert Budget(lab.ledger).lines(f"night:{night_id}")["tokens"].spent == 42


def test_another_seed_role_or_request_is_another_call(lab: Lab, night_id: int) -> None:
    work = Work(DONE)
    author, surveyor = Recorder(lab, night_id, "kernel_author"), Recorder(lab, night_id, "surveyor")
    calls = [
        author.call(REQUEST, work, seed=1, max_tokens=100),
        author.call(REQUEST, work, seed=2, max_tokens=100),
        author.call({**REQUEST, "count": 3}, work, seed=1, max_tokens=100),
        surveyor.call(REQUEST, work, seed=1, max_tokens=100),
        Recorder(lab, None, "kernel_author", model="m0").call(REQUEST, work, seed=1, max_tokens=100),
    ]
    assert len({call.id for call in calls}) == work.calls == 5


def test_a_failed_call_is_kept_and_asked_again(lab: Lab, night_id: int) -> None:
    recorder = Recorder(lab, night_id, "surveyor")
    failed = recorder.call(REQUEST, Work(Outcome({}, 5, 3, "all 1 replies failed: cut")), seed=1, max_tokens=100)
    assert failed.error
    recorder.call(REQUEST, Work(DONE), seed=1, max_tokens=100)
    assert [(row.status, row.attempt, row.error) for row in rows(lab)] == [
        ("failed", 1, "all 1 replies failed: cut"),
        ("done", 2, None),
    ]


def test_an_exception_is_recorded_and_releases_the_budget(lab: Lab, night_id: int) -> None:
    def work() -> Outcome:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        Recorder(lab, night_id, "surveyor").call(REQUEST, work, seed=1, max_tokens=100)
    assert [(row.status, row.error) for row in rows(lab)] == [("failed", "RuntimeError: out of memory")]
    line = Budget(lab.ledger).lines(f"night:{night_id}")["tokens"]
    assert (line.reserved, line.spent) == (0, 0)


@pytest.mark.parametrize(
    "scope",
    [
        lambda night: f"night:{night}",
        lambda night: f"role:surveyor/night:{night}",
        lambda _night: "project:4",
    ],
)
def test_a_cap_stops_the_call_before_the_model_is_asked(lab: Lab, night_id: int, scope: Callable[[int], str]) -> None:
    budget, work = Budget(lab.ledger), Work(DONE)
    budget.set_cap(scope(night_id), "tokens", 99)
    recorder = Recorder(lab, night_id, "surveyor", project_id=None)
    recorder.project_id = 4
    with pytest.raises(BudgetExceeded):
        recorder.call(REQUEST, work, seed=1, max_tokens=100)
    assert work.calls == 0
    assert rows(lab) == []
    for each in (f"night:{night_id}", f"role:surveyor/night:{night_id}", "project:4"):
        assert all(line.reserved == line.spent == 0 for line in budget.lines(each).values())


def test_credentials_never_reach_the_store(lab: Lab, night_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", CANARY)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ada Lovelace")  # no credential, though it holds "AUTH"
    request = {**REQUEST, "messages": messages_json([user(f"Ada Lovelace says: use {CANARY}!")])}
    work = Work(Outcome({"values": [{"text": CANARY}]}, 1, 1, f"refused: {CANARY}"))
    Recorder(lab, night_id, "surveyor").call(request, work, seed=1, max_tokens=10)
    (row,) = rows(lab)
    assert row.reply_sha256 is not None
    kept = json.dumps([lab.artifacts.get_json(row.request_sha256), lab.artifacts.get_json(row.reply_sha256), row.error])
    assert CANARY not in kept
    assert "[SOME_API_KEY]" in kept
    assert "Ada Lovelace" in kept
    for path in lab.state.rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path


def test_a_short_value_is_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_TOKEN", "1")
    assert redact({"n": "11"}) == {"n": "11"}


def test_a_night_without_subject_must_name_its_model(lab: Lab) -> None:
    with pytest.raises(ValueError, match="has no subject"):
        Recorder(lab, 77, "surveyor")
