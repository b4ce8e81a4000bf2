"""``nightshift db``: what it finds, what it copies, what it refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from sqlmodel import SQLModel, select

from tests.conftest import Ran
from workspace.lab import Lab
from workspace.ledger import Ledger
from workspace.ledger_check import check_ledger
from workspace.tables import (
    BudgetLine,
    Candidate,
    Checkpoint,
    Dataset,
    Event,
    Experiment,
    Night,
    Promotion,
    Proposal,
    Reservation,
    now,
)

DEAD = "{host}/00000000-0000-0000-0000-000000000000/1/1"  # a process of another boot of this machine


def dead_owner() -> str:
    from workspace.process import identity

    return DEAD.format(host=identity().rsplit("/", 3)[0])


def add(lab: Lab, *rows: SQLModel) -> None:
    with lab.ledger.write() as session:
        for row in rows:
            session.add(row)
            session.flush()


def night() -> Night:
    return Night(profile="smoke", seed="1", base_commit="0" * 40, settings_sha256="0" * 64, budget_wall_s=1.0)


def checkpoint(lab: Lab, name: str = "m0", **more: object) -> Checkpoint:
    folder = lab.checkpoints_dir / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    values = {
        "name": name,
        "sha256": name * 4,
        "path": name,
        "source": "test",
        "licence": "none",
        "files": {"config.json": ""},
    }
    return Checkpoint.model_validate({**values, **more})


def codes(lab: Lab) -> dict[str, str]:
    """code → row of every finding."""
    found = check_ledger(lab.ledger, lab.state / "artifacts", lab.checkpoints_dir)
    return {finding.code: finding.row for finding in found}


def test_a_fresh_lab_is_whole(nightshift: Callable[..., Ran], lab: Lab) -> None:
    ran = nightshift("db", "check", "--deep", "--json")
    assert (ran.code, ran.json()) == (0, {"ok": True, "findings": []})
    assert codes(lab) == {}


def test_missing_and_changed_files(nightshift: Callable[..., Ran], lab: Lab) -> None:
    lost, cut, swapped = (lab.artifacts.put_bytes(data, "test") for data in (b"lost", b"cut short", b"swapped"))
    lab.artifacts.path(lost).unlink()
    lab.artifacts.path(cut).write_bytes(b"cut")
    lab.artifacts.path(swapped).write_bytes(b"SWAPPED")
    stray = lab.state / "artifacts" / "ab" / ("ab" * 32)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"no row")
    found = check_ledger(lab.ledger, lab.state / "artifacts", lab.checkpoints_dir)
    assert {(finding.code, finding.level) for finding in found} == {
        ("missing-file", "fault"), ("changed-file", "fault"), ("unlisted-file", "note"),
    }  # fmt: skip
    assert nightshift("db", "check").code == 1
    deep = nightshift("db", "check", "--deep", "--json").json()["findings"]
    assert sum(finding["code"] == "changed-file" for finding in deep) == 2


def test_a_note_alone_is_no_fault(nightshift: Callable[..., Ran], lab: Lab) -> None:
    stray = lab.state / "artifacts" / "ab" / ("ab" * 32)
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"no row")
    assert nightshift("db", "check").code == 0


def test_rows_that_point_at_nothing(lab: Lab) -> None:
    add(lab, night(), Candidate(night_id=1, task="rmsnorm", sha256="c" * 64), checkpoint(lab))
    (lab.checkpoints_dir / "m0" / "config.json").unlink()
    assert codes(lab) == {"dangling-artifact": "candidate 1", "missing-file": "checkpoint m0"}


@pytest.mark.parametrize(
    "broken",
    [
        {"night_id": 1},  # trained, but from what, on what?
        {"dataset_id": 7},
        {"parent_id": 2},  # its own ancestor
    ],
)
def test_broken_lineage(lab: Lab, broken: dict[str, int]) -> None:
    add(lab, night(), checkpoint(lab))
    with lab.ledger.write() as session:
        session.connection().exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        session.add(checkpoint(lab, "m1", **broken))
    assert codes(lab) == {"broken-lineage": "checkpoint m1"}


def test_whole_lineage_is_no_finding(lab: Lab) -> None:
    parquet, manifest, recipe = (lab.artifacts.put_bytes(data, "test") for data in (b"1", b"2", b"3"))
    add(lab, night(), checkpoint(lab))
    add(
        lab,
        Dataset(
            night_id=1, checkpoint_id=1, name="d", target="t", rows=1, parquet_sha256=parquet, manifest_sha256=manifest,
            recipe_sha256=recipe,
        ),
        checkpoint(lab, "m1", parent_id=1, dataset_id=1, night_id=1, recipe_sha256=recipe),
        Promotion(checkpoint_id=2, previous_id=1, by="a", reason="b"),
    )  # fmt: skip
    assert codes(lab) == {}


def test_stale_leases(lab: Lab) -> None:
    add(
        lab,
        night(),
        Experiment(night_id=1, kind="kernel", key="alive", status="running", heartbeat_at=now()),
        BudgetLine(scope="night:1", resource="tokens"),
    )
    assert codes(lab) == {}
    add(
        lab,
        Experiment(night_id=1, kind="kernel", key="silent", status="leased", heartbeat_at=now() - timedelta(hours=1)),
        Experiment(night_id=1, kind="kernel", key="dead", status="running", owner=dead_owner(), heartbeat_at=now()),
        Reservation(line_id=1, amount=5, owner=dead_owner()),
    )
    found = check_ledger(lab.ledger, lab.state / "artifacts", lab.checkpoints_dir)
    assert [finding.code for finding in found] == ["stale-lease", "stale-lease", "stale-reservation"]


def test_effects_without_a_decision(lab: Lab) -> None:
    add(
        lab,
        night(),
        Proposal(kind="kernel", target="rmsnorm", title="t", author="m0", status="merged"),
        Experiment(night_id=1, kind="kernel", key="k", status="done", finishes=2),
    )
    assert codes(lab) == {"no-review": "proposal 1", "repeated": "experiment 1"}


def test_backup_and_restore_round_trip(nightshift: Callable[..., Ran], lab: Lab, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    lab.ledger.log("test", "before")
    assert nightshift("db", "backup", copy).code == 0
    assert not list(tmp_path.glob("copy.db-*"))
    lab.ledger.log("test", "after")
    lab.ledger.dispose()
    ran = nightshift("db", "restore", copy, "--yes", "--json")
    assert ran.code == 0
    assert messages(lab) == ["before"]
    assert nightshift("db", "check").code == 0
    with closing(sqlite3.connect(ran.json()["kept"])) as kept:  # nothing is thrown away
        assert ("after",) in kept.execute("SELECT message FROM event WHERE kind = 'test'").fetchall()


def messages(lab: Lab) -> list[str]:
    with lab.ledger.read() as session:
        return [event.message for event in session.exec(select(Event).where(Event.kind == "test"))]


def test_restore_over_a_damaged_ledger(nightshift: Callable[..., Ran], lab: Lab, tmp_path: Path) -> None:
    lab.ledger.log("test", "kept")
    assert nightshift("db", "backup", tmp_path / "copy.db").code == 0
    lab.ledger.dispose()
    for suffix in ("", "-wal", "-shm"):
        (lab.state / f"ledger.db{suffix}").unlink(missing_ok=True)
    (lab.state / "ledger.db").write_bytes(b"not a database at all" * 500)
    assert nightshift("db", "check").code == 1
    assert nightshift("db", "restore", tmp_path / "copy.db", "--yes").code == 0
    assert nightshift("db", "check").code == 0
    assert messages(lab) == ["kept"]


def test_what_backup_and_restore_refuse(nightshift: Callable[..., Ran], lab: Lab, tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    there.write_text("mine")
    empty = tmp_path / "empty.db"
    sqlite3.connect(empty).close()
    cases: tuple[tuple[str, Path], ...] = (
        ("backup", there), ("backup", tmp_path / "no" / "folder.db"), ("restore", there), ("restore", empty),
        ("restore", tmp_path / "missing.db"),
    )  # fmt: skip
    for arguments in cases:
        assert nightshift("db", *arguments, *(["--yes"] if arguments[0] == "restore" else [])).code == 2, arguments
    assert there.read_text() == "mine"
    assert nightshift("db", "check").code == 0


def test_move_copies_every_row(nightshift: Callable[..., Ran], lab: Lab, tmp_path: Path) -> None:
    add(lab, night(), checkpoint(lab), Promotion(checkpoint_id=1, by="a", reason="b"))
    lab.ledger.log("test", "x" * 1000, 1, numbers=[1, 2.5])
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    ran = nightshift("db", "move", url, "--yes", "--json")
    assert ran.code == 0
    target = Ledger(url)
    with lab.ledger.read() as mine, target.read() as theirs:
        for table in (Night, Checkpoint, Promotion, Event):
            rows, copied = (list(session.exec(select(table)).all()) for session in (mine, theirs))
            assert [row.model_dump() for row in rows] == [row.model_dump() for row in copied]
    target.log("test", "ids go on")
    target.dispose()
    again = nightshift("db", "move", url, "--yes")
    assert again.code == 2
    assert "ledger already" in again.err


@pytest.mark.parametrize(
    ("url", "code"), [("nonsense", 2), ("nodriver://x/y", 2), ("sqlite:////no/such/folder/x.db", 3)]
)
def test_move_to_nowhere(nightshift: Callable[..., Ran], lab: Lab, url: str, code: int) -> None:
    ran = nightshift("db", "move", url, "--yes")
    assert ran.code == code
    assert "Traceback" not in ran.err


def test_a_password_is_never_shown(nightshift: Callable[..., Ran], lab: Lab) -> None:
    ran = nightshift("db", "move", "postgresql://user:hunter2@localhost:1/none", "--yes")
    assert ran.code == 3
    assert "hunter2" not in ran.out + ran.err
