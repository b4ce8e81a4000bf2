"""``nightshift init`` and ``nightshift doctor``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran
from workspace.lab import Lab, home
from workspace.tables import Event, now


def test_init_makes_a_lab_that_git_and_the_ledger_agree_with(nightshift: Callable[..., Ran], tmp_path: Path) -> None:
    ran = nightshift("init", tmp_path / "new", "--json")
    made = ran.json()
    assert ran.code == 0
    assert made["made"]
    assert {"rmsnorm", "softmax", "swiglu"} <= set(made["kernels"])
    assert made["evals"]
    assert made["recipes"]
    assert len(made["families"]) >= 8
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=tmp_path / "new", capture_output=True, text=True, check=True
    )
    assert status.stdout == ""
    assert nightshift("--lab", tmp_path / "new", "db", "check").code == 0


def test_init_again_changes_nothing(nightshift: Callable[..., Ran], lab: Lab) -> None:
    head, settings = lab.git.head(), (lab.root / "nightshift.toml").read_bytes()
    ran = nightshift("init", lab.root)
    assert ran.code == 0
    assert "already" in ran.out
    assert (lab.git.head(), (lab.root / "nightshift.toml").read_bytes()) == (head, settings)


def test_init_goes_on_where_it_was_killed(nightshift: Callable[..., Ran], lab: Lab) -> None:
    lab.ledger.dispose()
    (lab.state / "making").touch()
    (lab.state / "ledger.db").unlink()
    ran = nightshift("init", lab.root, "--json")
    assert ran.code == 0
    assert ran.json()["lab_id"] == lab.lab_id
    assert not (lab.state / "making").exists()
    assert nightshift("db", "check").code == 0


def test_init_refuses_what_is_not_empty(nightshift: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        ran = nightshift("init", tmp_path / name)
        assert ran.code == 2
        assert "DIR" in ran.err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def checks(ran: Ran) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in ran.json()["checks"]}


@pytest.mark.docker
def test_doctor_is_content_with_this_machine(nightshift: Callable[..., Ran], lab: Lab, docker_engine: object) -> None:
    ran = nightshift("doctor", "--json")
    found = checks(ran)
    assert ran.code == 0, ran.out
    assert ran.json()["ok"]
    assert set(found) == {
        "settings", "docker", "git", "packages", "model", "disk", "clock", "gpu", "prefect", "secrets", "ledger",
        "schedule",
    }  # fmt: skip
    assert found["model"]["detail"].split("sha256 ")[1].startswith("b179c952")
    assert "Ada Tester" in found["git"]["detail"]
    text = nightshift("doctor")
    assert text.code == 0
    assert all(name in text.out for name in found)


def test_doctor_works_outside_of_a_lab(
    nightshift: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = checks(nightshift("doctor", "--json"))
    assert found["lab"]["state"] == "note"
    assert found["packages"]["state"] == "ok"
    assert "ledger" not in found


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [('cron = "30 1 * * *"', 'cron = "soon"', "cron"), ('timezone = "UTC"', 'timezone = "Mars/Olympus"', "timezone")],
)
def test_a_schedule_that_never_comes_is_a_broken_setting(
    nightshift: Callable[..., Ran], lab: Lab, old: str, new: str, word: str
) -> None:
    file = lab.root / "nightshift.toml"
    file.write_text(file.read_text().replace(old, new))
    ran = nightshift("doctor", "--json")
    assert ran.code == 2
    found = {**checks(ran)}
    assert word in (found.get("schedule") or found["settings"])["detail"]


def test_secrets_that_others_can_read(nightshift: Callable[..., Ran], lab: Lab) -> None:
    (home() / "secrets").chmod(0o755)
    ran = nightshift("doctor", "--json")
    assert ran.code == 3
    assert checks(ran)["secrets"]["remedy"].startswith("chmod 700")
    (home() / "secrets").chmod(0o700)
    (home() / "secrets" / lab.lab_id).unlink()
    assert "gone" in checks(nightshift("doctor", "--json"))["secrets"]["detail"]


def test_a_clock_behind_the_ledger(nightshift: Callable[..., Ran], lab: Lab) -> None:
    with lab.ledger.write() as session:
        session.add(Event(kind="test", message="from the future", at=now() + timedelta(days=400)))
    ran = nightshift("doctor", "--json")
    assert ran.code == 3
    assert checks(ran)["clock"]["state"] == "missing"


def test_a_prefect_server_that_does_not_answer(
    nightshift: Callable[..., Ran], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    ran = nightshift("doctor", "--json")
    assert ran.code == 3
    assert "unset PREFECT_API_URL" in checks(ran)["prefect"]["remedy"]


def test_uncommitted_changes_are_worth_a_note(nightshift: Callable[..., Ran], lab: Lab) -> None:
    (lab.root / "README.md").write_text("changed")
    assert checks(nightshift("doctor", "--json"))["git"]["state"] == "note"
