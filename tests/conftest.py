"""What every test can rely on: an environment of its own, a fresh lab, an engine, a check that nothing is left.

Fixtures: ``lab`` (a fresh lab), ``docker_engine`` (fails with the remedy when there is none), ``nightshift`` (runs one
command line in this process).  Nothing reads or writes the home of the person who runs the tests.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

if TYPE_CHECKING:
    from workspace.docker_engine import EngineInfo
    from workspace.lab import Lab

MARK = "NIGHTSHIFT_TEST_SESSION"  # in the environment of every process that the tests start
SESSION = uuid.uuid4().hex
GIT_CONFIG = "[user]\n\tname = Ada Tester\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"
DIES_WITHIN_S = 10.0


@pytest.fixture(scope="session", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No hub, no telemetry, no settings of a person; a git identity; a home for secrets and Prefect that goes away."""
    home = tmp_path_factory.mktemp("home")
    (home / ".gitconfig").write_text(GIT_CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "NIGHTSHIFT_LAB",
            "XDG_CONFIG_HOME",
            "XDG_CACHE_HOME",
            "GIT_CONFIG_GLOBAL",
            "GIT_AUTHOR_NAME",
            "GIT_AUTHOR_EMAIL",
            "PREFECT_API_URL",
            "NO_COLOR",
        ):
            patch.delenv(name, raising=False)
        for name, value in {
            MARK: SESSION,
            "NIGHTSHIFT_HOME": str(home / "nightshift"),
            "HOME": str(home),  # GitPython reads ~/.gitconfig itself
            "GIT_CONFIG_NOSYSTEM": "1",
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "MPLBACKEND": "Agg",
            "TRITON_DEFAULT_FP_FUSION": "1",
            "COLUMNS": "120",
        }.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_left(_environment: None) -> Iterator[None]:
    """After the last test: no process and no container that this session started."""
    before = _containers()
    yield
    deadline = time.monotonic() + DIES_WITHIN_S
    while (processes := _our_processes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    left = {name: what for name, what in _containers().items() if name not in before}
    assert not processes, f"processes left behind: {processes}"
    assert not left, f"containers left behind: {left}"


def _our_processes() -> list[str]:
    """Children of ours and everything else that inherited the session's mark, whoever is its parent now."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            ours = process.environ().get(MARK) == SESSION
            command = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if ours and "multiprocessing.resource_tracker" not in command:  # lives and dies with this very process
            found.append(f"{process.pid} {command[:120]}")
    return found


def _containers() -> dict[str, str]:
    """Name → job of the sandboxes there are whose owner is us or dead; none where no engine answers."""
    from workspace.docker_engine import connect
    from workspace.errors import SurroundingsError
    from workspace.process import identity
    from workspace.sandbox_owner import JOB, LAB, OWNER, owner_is_dead

    try:
        client = connect()
    except SurroundingsError:
        return {}
    us = identity()
    try:
        listed = client.containers.list(all=True, filters={"label": LAB}, ignore_removed=True)
        return {
            str(container.name): str(container.labels.get(JOB, ""))
            for container in listed
            if container.labels.get(OWNER) == us or owner_is_dead(container.labels)
        }
    finally:
        client.close()


@pytest.fixture(scope="session")
def _lab_template(_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``lab`` and ``home`` as ``nightshift init`` makes them; making one costs seconds, copying it does not."""
    from flows.starter import starter_files
    from workspace.lab import create_lab

    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_HOME", str(folder / "home"))
        made = create_lab(folder / "lab", starter_files("lab"))
    made.ledger.dispose()
    return folder


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _lab_template: Path) -> Iterator[Lab]:
    """A fresh lab as ``nightshift init`` makes it, with a home (secrets) of its own; the current folder is the lab."""
    from workspace.lab import Lab

    for name in ("lab", "home"):
        shutil.copytree(_lab_template / name, tmp_path / name, symlinks=True)
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(tmp_path / "home"))
    made = Lab(tmp_path / "lab")
    monkeypatch.chdir(made.root)
    yield made
    if "ledger" in vars(made):
        made.ledger.dispose()


@pytest.fixture(scope="session")
def docker_engine() -> EngineInfo:
    """The engine that answers. Its absence is a failure, never a skip: what it guards must not go untested."""
    from workspace.errors import SurroundingsError
    from workspace.sandbox import Sandboxes, SandboxSettings

    try:
        with Sandboxes(SandboxSettings(), "tests") as sandboxes:
            return sandboxes.check()
    except SurroundingsError as error:
        pytest.fail(f"this test needs a Docker engine: {error}", pytrace=False)


@dataclass(frozen=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        import json

        return json.loads(self.out)


@pytest.fixture
def nightshift(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """``nightshift("db", "check", "--json")`` runs it in this process, up to its exit code."""
    from cli.main import run

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call
