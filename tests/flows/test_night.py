"""One smoke night through every room, and the same killed ten times: real Docker, git, ledger, model and Prefect."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from workspace.lab import Lab
from workspace.tables import Artifact, Checkpoint, Dataset, Experiment, Night, Proposal, Verdict

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1500)]

KILLS = 10
SEED = 20261130


def run(lab: Path, *arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli.main", "--lab", str(lab), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def new_lab(folder: Path) -> Path:
    made = subprocess.run(
        [sys.executable, "-m", "cli.main", "init", str(folder)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory, docker_engine: None) -> tuple[Path, dict[str, Any]]:
    lab = new_lab(tmp_path_factory.mktemp("night") / "lab")
    done = run(lab, "night", "--profile", "smoke", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    return lab, json.loads(done.stdout)


def rows(lab: Path, table: Any) -> list[Any]:
    with Lab(lab).ledger.read() as session:
        return list(session.exec(select(table)).all())


def assert_whole(lab: Path) -> None:
    """No row points at a missing or changed file, nothing is held by anybody, and nothing is left over."""
    opened = Lab(lab)
    for artifact in rows(lab, Artifact):
        assert len(opened.artifacts.get_bytes(artifact.sha256)) == artifact.size_bytes
    for checkpoint in rows(lab, Checkpoint):
        folder = opened.checkpoints_dir / checkpoint.path
        assert {path.name for path in folder.iterdir()} == set(checkpoint.files)
    assert not [row for row in rows(lab, Experiment) if row.status in ("leased", "running")]
    assert not list((opened.state / "worktrees").glob("*"))
    assert not list((opened.state / "training").glob("*"))
    assert not list((opened.state / "scratch").glob("*"))
    assert run(lab, "db", "check", "--json").returncode == 0


def containers_of(lab: Path) -> list[str]:
    import docker

    client = docker.from_env()
    try:
        wanted = f"nightshift.lab={Lab(lab).lab_id}"
        return [str(each.name) for each in client.containers.list(all=True, filters={"label": wanted})]
    finally:
        client.close()


def test_the_whole_walk_leaves_its_evidence(night: tuple[Path, dict[str, Any]]) -> None:
    lab, summary = night
    assert summary["status"] == "done"
    assert {row["task"] for row in summary["kernels"]} == {"rmsnorm", "softmax", "swiglu"}
    assert all(row["verdict"] in ("accepted", "rejected") for row in summary["kernels"])
    assert all(row["level"] == "compiled" for row in summary["kernels"] if row["verdict"] == "accepted")
    (dataset,) = rows(lab, Dataset)
    assert dataset.rows == sum(dataset.figures["counts"].values())
    parent, successor = sorted(rows(lab, Checkpoint), key=lambda row: row.id)
    assert successor.parent_id == parent.id
    assert successor.dataset_id == dataset.id
    (judged,) = [row for row in rows(lab, Verdict) if row.decision in ("promote", "reject", "inconclusive")]
    assert judged.decision == summary["decision"]
    assert {claim["role"] for claim in judged.figures["claims"]} == {"target", "guard"}
    assert summary["spend"]["tokens"] > 0
    assert_whole(lab)
    assert containers_of(lab) == []


def test_what_a_person_merges_is_what_the_next_night_starts_from(night: tuple[Path, dict[str, Any]]) -> None:
    lab, summary = night
    (proposal,) = [row for row in rows(lab, Proposal) if row.kind == "posttrain"]
    (successor,) = [row for row in rows(lab, Checkpoint) if row.id == proposal.checkpoint_id]
    assert proposal.status == "awaiting_review"
    assert proposal.head == successor.sha256

    for row in (row for row in rows(lab, Proposal) if row.status == "awaiting_review"):
        assert run(lab, "review", "approve", str(row.id)).returncode == 0
        refused = run(lab, "review", "merge", str(row.id), "--yes")
        against = row.kind == "kernel" or summary["decision"] != "promote"
        assert refused.returncode == (2 if against else 0), "unmeasured, or against the verdict: only when meant"
        meant = ["--accept-unmeasured"] if row.kind == "kernel" else ["--override", "--reason", "a test of the walk"]
        assert run(lab, "review", "merge", str(row.id), "--yes", *meant).returncode == 0
    head = Lab(lab).git.head()
    again = run(lab, "kernel", "optimize", "softmax", "--candidates", "1", "--profile", "smoke", "--json")
    assert again.returncode == 0, again.stderr[-3000:]
    second = next(row for row in rows(lab, Night) if row.id == json.loads(again.stdout)["night"])
    assert (second.subject_id, second.base_commit) == (successor.id, head)
    assert second.profile == "smoke+optimize-softmax"
    worked = [(row.kind, row.key) for row in rows(lab, Experiment) if row.night_id == second.id]
    assert {kind for kind, _key in worked} == {"import", "kernel", "propose"}, "the judge has passed its test before"
    assert all(key.startswith("softmax") for kind, key in worked if kind == "kernel")
    assert_whole(lab)


def test_a_report_is_written(night: tuple[Path, dict[str, Any]]) -> None:
    lab, summary = night
    page = Path(summary["report"]).read_text()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert run(lab, "report", "--json").returncode == 0


def test_killed_ten_times_it_still_ends(tmp_path: Path, docker_engine: None) -> None:
    """kill -9 of the whole process group at random instants; every start goes on where the last one was."""
    lab = new_lab(tmp_path / "lab")
    chance = random.Random(SEED)
    for _kill in range(KILLS):
        started = start_night(lab)
        try:
            started.wait(timeout=chance.uniform(4, 32))
        except subprocess.TimeoutExpired:
            kill_tree(started.pid)
        started.wait()
    last = run(lab, "night", "--profile", "smoke", "--json")
    assert last.returncode == 0, last.stderr[-3000:]
    nights = rows(lab, Night)
    assert all(row.status == "done" for row in nights)
    experiments = rows(lab, Experiment)
    assert experiments
    assert all(row.finishes == 1 for row in experiments if row.status == "done")
    assert all(row.status == "done" for row in experiments if row.night_id == nights[0].id)
    assert_whole(lab)
    assert containers_of(lab) == []
    assert processes_of(lab) == []
    shutil.rmtree(lab)


def start_night(lab: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cli.main", "--lab", str(lab), "night", "--profile", "smoke"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all that descend from it, whatever session they are in."""
    parents = {int(path.name): _parent(path) for path in Path("/proc").glob("[0-9]*")}
    doomed = {pid}
    while grown := {child for child, parent in parents.items() if parent in doomed} - doomed:
        doomed |= grown
    for each in doomed:
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def processes_of(lab: Path) -> list[str]:
    """Command lines of processes that still name the lab, after a moment for dying children."""
    deadline = time.monotonic() + 10
    while True:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(lab) in text:
                found.append(text)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
