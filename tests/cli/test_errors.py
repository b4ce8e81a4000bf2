"""Every error path that a person can meet: exit 2 or 3, the remedy in the message, nothing lost."""

from __future__ import annotations

import io
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError
from sqlmodel import select

from cli.common import handle_errors
from tests.conftest import Ran
from workspace.lab import Lab
from workspace.ledger import Ledger
from workspace.tables import Event

HOLD_THE_LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(60)
"""


def test_broken_toml(nightshift: Callable[..., Ran], lab: Lab) -> None:
    (lab.root / "nightshift.toml").write_text("name = \n")
    ran = nightshift("model", "list")
    assert ran.code == 2
    assert "nightshift.toml" in ran.err
    assert "line 1" in ran.err
    assert nightshift("doctor").code == 2


def test_unknown_key_is_named_with_what_is_allowed(nightshift: Callable[..., Ran], lab: Lab) -> None:
    file = lab.root / "nightshift.toml"
    file.write_text(file.read_text().replace("wall_s = 900", "wall_seconds = 900"))
    for command in (("model", "list"), ("doctor",)):
        ran = nightshift(*command)
        assert ran.code == 2
        assert "budget.wall_seconds" in ran.err + ran.out
        assert "wall_s" in (ran.err + ran.out).replace("wall_seconds", "")


def test_wrong_value_is_named(nightshift: Callable[..., Ran], lab: Lab) -> None:
    file = lab.root / "nightshift.toml"
    file.write_text(file.read_text().replace("alpha = 0.05", "alpha = 5.0"))
    ran = nightshift("model", "list")
    assert ran.code == 2
    assert "judge.alpha" in ran.err
    assert "5.0" in ran.err


def test_no_docker_engine(nightshift: Callable[..., Ran], lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{lab.root}/nonexistent.sock")
    ran = nightshift("doctor", "--json")
    assert ran.code == 3
    docker = next(check for check in ran.json()["checks"] if check["name"] == "docker")
    assert docker["state"] == "missing"
    assert "docker-setup" in docker["remedy"]


def test_missing_model_package(nightshift: Callable[..., Ran], lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.embedded.PACKAGE", "no-such-model-package")
    ran = nightshift("doctor", "--json")
    assert ran.code == 3
    model = next(check for check in ran.json()["checks"] if check["name"] == "model")
    assert model["state"] == "missing"
    assert "pip install" in model["remedy"]
    ask = nightshift("model", "ask", "m0", "Hello?")
    assert ask.code == 3
    assert "remedy: pip install" in ask.err


def test_unknown_names(nightshift: Callable[..., Ran], lab: Lab) -> None:
    for arguments in (("model", "show", "m9"), ("model", "export", "m9", "--to", "there"), ("model", "promote", "m9")):
        ran = nightshift(*arguments)
        assert ran.code == 2
        assert "'m9'" in ran.err
        assert "allowed" in ran.err


@pytest.mark.parametrize("name", ["a b", "--help2", "../x"])
def test_not_a_lab(nightshift: Callable[..., Ran], tmp_path: Path, name: str) -> None:
    ran = nightshift("--lab", tmp_path / name, "db", "check")
    assert ran.code == 2
    assert "remedy: nightshift init" in ran.err


@contextmanager
def _lock_held(database: Path) -> Iterator[None]:
    holder = subprocess.Popen([sys.executable, "-c", HOLD_THE_LOCK, str(database)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.kill()
        holder.communicate()


def test_busy_ledger(nightshift: Callable[..., Ran], lab: Lab) -> None:
    with _lock_held(lab.state / "ledger.db"):
        ran = nightshift("doctor", "--json")
        assert ran.code == 3
        ledger = next(check for check in ran.json()["checks"] if check["name"] == "ledger")
        assert "locked" in ledger["detail"]
        assert ledger["remedy"]
        assert nightshift("db", "check").code == 0  # reading never waits for a writer
        impatient = Ledger(lab.ledger_url, busy_timeout_s=0.1)
        with pytest.raises(SystemExit) as end, handle_errors():
            impatient.log("test", "never written")
        impatient.dispose()
        assert end.value.code == 3
    lab.ledger.log("test", "written")
    with lab.ledger.read() as session:
        assert [event.message for event in session.exec(select(Event).where(Event.kind == "test"))] == ["written"]


def test_errors_of_the_ledger_that_reach_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    """SQLite's reasons, raised outside of the ledger's own sessions."""
    for reason, word in (
        ("database is locked", "locked"),
        ("database or disk is full", "written"),
        ("disk image is malformed", "damaged"),
    ):
        with pytest.raises(SystemExit) as end, handle_errors():
            raise OperationalError("INSERT", {}, sqlite3.OperationalError(reason))
        assert end.value.code == 3
        told = capsys.readouterr().err
        assert word in told
        assert "remedy:" in told


def test_missing_and_damaged_ledger(nightshift: Callable[..., Ran], lab: Lab) -> None:
    database = lab.state / "ledger.db"
    lab.ledger.dispose()
    whole = database.read_bytes()
    database.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    ran = nightshift("db", "check")
    assert ran.code == 1
    assert "integrity" in ran.out
    database.unlink()
    ran = nightshift("db", "check")
    assert ran.code == 3
    assert "db restore" in ran.err


def test_an_older_schema_is_named(nightshift: Callable[..., Ran], lab: Lab) -> None:
    lab.ledger.dispose()
    with closing(sqlite3.connect(lab.state / "ledger.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'older'")
    ran = nightshift("model", "list")
    assert ran.code == 3
    assert "db upgrade" in ran.err


def test_full_disk(lab: Lab, tmp_path: Path) -> None:
    """A file-size limit stands in for a full disk where nothing can be mounted: the system refuses the write."""
    ran = _with_little_space(lab, ["db", "backup", str(tmp_path / "backup.db")])
    assert ran.returncode == 3, ran.stderr
    assert "remedy:" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list(tmp_path.glob("*backup.db*")), "half a backup is no backup"
    check = _with_little_space(lab, ["db", "check"], limit_bytes=resource.RLIM_INFINITY)
    assert check.returncode == 0, check.stderr


def _with_little_space(
    lab: Lab, arguments: list[str], limit_bytes: int = 64 * 1024
) -> subprocess.CompletedProcess[str]:
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes})); "
        "from cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=lab.root, check=False
    )


def test_full_disk_while_a_lab_is_made(small_disk: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "cli.main", "init", str(small_disk / "lab")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 3, ran.stderr
    assert "remedy: free some" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 kB; needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"this container may not mount: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_ctrl_c_is_130(lab: Lab) -> None:
    """A question is open on a terminal that nobody answers; the person presses Ctrl-C."""
    import pty

    master, slave = pty.openpty()
    backup = lab.root.parent / "backup.db"
    with closing(sqlite3.connect(lab.state / "ledger.db")) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.main", "db", "restore", str(backup)],
        stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=lab.root,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        question = ""
        while "[y/N]" not in question:
            letter = process.stderr.read(1)
            assert letter, question
            question += letter
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        os.close(master)
        os.close(slave)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err


def test_a_question_that_nobody_can_answer_is_a_no(
    nightshift: Callable[..., Ran], lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nightshift("db", "backup", tmp_path / "b.db").code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    ran = nightshift("db", "restore", tmp_path / "b.db")
    assert ran.code == 130
    assert ran.out == ""
    assert "--yes" in ran.err


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("YES\n", 0), ("n\n", 130), ("\n", 130), ("maybe\n", 130)])
def test_answers(
    nightshift: Callable[..., Ran], lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, code: int
) -> None:
    nightshift("db", "backup", tmp_path / "b.db")
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    ran = nightshift("db", "restore", tmp_path / "b.db")
    assert ran.code == code
    assert "[y/N]" in ran.err
