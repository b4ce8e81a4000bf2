"""At most one success per experiment, whoever dies in between."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlmodel import select

from workspace.experiments import ExperimentFailed, reap_lost, run_once, stored_result
from workspace.ledger import Ledger
from workspace.tables import Experiment, Night

CHILD = """
    import os, sys, time
    from workspace.ledger import Ledger
    from workspace.experiments import run_once
    def work():
        print("working", flush=True)
        time.sleep(60)
        return {}
    run_once(Ledger(sys.argv[1]), 1, "kernel", "a", work)
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    found = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    found.upgrade()
    with found.write() as session:
        session.add(Night(profile="test", seed="1", base_commit="0" * 40, settings_sha256="", budget_wall_s=1))
    yield found
    found.dispose()


def only_row(ledger: Ledger) -> Experiment:
    with ledger.read() as session:
        return session.exec(select(Experiment)).one()


def test_a_finished_experiment_is_read_back(ledger: Ledger) -> None:
    calls = []

    def work() -> dict[str, int]:
        calls.append(1)
        return {"answer": 42}

    first = run_once(ledger, 1, "kernel", "a", work)
    again = run_once(ledger, 1, "kernel", "a", work)
    assert first == again == {"answer": 42} == stored_result(ledger, 1, "kernel", "a")
    assert len(calls) == 1
    assert only_row(ledger).finishes == 1
    assert only_row(ledger).fingerprint["python"]


def test_a_failure_is_recorded_and_tried_again(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError):
        run_once(ledger, 1, "kernel", "a", lambda: {"x": 1 // 0})
    assert only_row(ledger).status == "failed"
    assert "ZeroDivisionError" in (only_row(ledger).error or "")
    assert run_once(ledger, 1, "kernel", "a", lambda: {"x": 1}) == {"x": 1}
    assert only_row(ledger).attempts == 2


def test_a_killed_holder_loses_its_lease(ledger: Ledger) -> None:
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(CHILD), ledger.url], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"working\n"
    with pytest.raises(ExperimentFailed, match="another process"):
        run_once(ledger, 1, "kernel", "a", dict)
    assert reap_lost(ledger) == []
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert reap_lost(ledger) == ["kernel/a"]
    assert only_row(ledger).status == "lost"
    assert run_once(ledger, 1, "kernel", "a", lambda: {"done": True}) == {"done": True}
    assert (only_row(ledger).attempts, only_row(ledger).finishes) == (2, 1)
