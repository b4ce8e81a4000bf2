"""The ledger: concurrent writers lose nothing, evidence stays, migrations give the tables of the code."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlmodel import select

from workspace.errors import SurroundingsError
from workspace.ledger import Ledger
from workspace.tables import APPEND_ONLY, BudgetLine, Event

WRITER = """
    import sys
    from sqlmodel import select
    from workspace.ledger import Ledger
    from workspace.tables import BudgetLine, Event
    ledger = Ledger(sys.argv[1])
    for step in range(int(sys.argv[2])):
        with ledger.write() as session:
            line = session.exec(select(BudgetLine)).one()
            line.spent += 1
            session.add_all([line, Event(kind="step", message=str(step))])
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    found.upgrade()
    return found


def test_migrations_make_the_tables_of_the_code(ledger: Ledger) -> None:
    assert ledger.revision() == ledger.newest_revision()
    command.check(ledger.alembic_config())  # raises when a model differs from the migrated schema
    ledger.dispose()


def test_no_step_of_concurrent_processes_is_lost(ledger: Ledger) -> None:
    processes, steps = 4, 40
    with ledger.write() as session:
        session.add(BudgetLine(scope="test", resource="tokens"))
    writers = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER), ledger.url, str(steps)])
        for _ in range(processes)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * processes
    with ledger.read() as session:
        assert session.exec(select(BudgetLine)).one().spent == processes * steps
        assert len(session.exec(select(Event)).all()) == processes * steps
    ledger.dispose()


@pytest.mark.parametrize("verb", ["UPDATE event SET message = 'other'", "DELETE FROM event"])
def test_evidence_is_append_only(ledger: Ledger, verb: str) -> None:
    ledger.log("kept", "first")
    with pytest.raises(IntegrityError, match="append-only"), ledger.write() as session:
        session.connection().execute(text(verb))
    with ledger.read() as session:
        assert session.exec(select(Event.message)).all() == ["first"]
    ledger.dispose()


def test_every_table_of_evidence_has_its_triggers(ledger: Ledger) -> None:
    with ledger.read() as session:
        names = {
            row[0] for row in session.connection().execute(text("SELECT name FROM sqlite_master WHERE type='trigger'"))
        }
    assert names == {f"append_only_{table}_{verb}" for table in APPEND_ONLY for verb in ("update", "delete")}
    ledger.dispose()


def test_an_error_rolls_everything_back(ledger: Ledger) -> None:
    def half() -> None:
        with ledger.write() as session:
            session.add(Event(kind="half", message="half"))
            session.flush()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    with ledger.read() as session:
        assert session.exec(select(Event)).all() == []
    ledger.dispose()


def test_a_reader_changes_nothing_and_waits_for_nobody(ledger: Ledger) -> None:
    begun = time.monotonic()
    with ledger.write() as writer:
        writer.add(Event(kind="open", message="not yet visible"))
        writer.flush()
        with ledger.read() as reader:
            assert reader.exec(select(Event)).all() == []
            reader.add(Event(kind="reader", message="dropped"))
    assert time.monotonic() - begun < 5
    with ledger.read() as session:
        assert [row.kind for row in session.exec(select(Event)).all()] == ["open"]
    ledger.dispose()


def test_a_busy_ledger_is_named_with_its_remedy(ledger: Ledger) -> None:
    impatient = Ledger(ledger.url, busy_timeout_s=0.2)
    with ledger.write(), pytest.raises(SurroundingsError, match="locked") as caught, impatient.write():
        pass
    assert "fuser" in caught.value.remedy
    ledger.dispose()
    impatient.dispose()


def test_times_come_back_aware(ledger: Ledger) -> None:
    ledger.log("now", "x")
    with ledger.read() as session:
        assert session.exec(select(Event)).one().at.utcoffset() is not None
    ledger.dispose()
