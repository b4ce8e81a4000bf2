"""``nightshift kernel``: facts about tasks, files that are no candidate, and one real verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.reasons import CODES
from tests.conftest import Ran
from workspace.lab import Lab

Command = Callable[..., Ran]


def test_list_and_show(lab: Lab, nightshift: Command) -> None:
    names = [task["name"] for task in nightshift("kernel", "list", "--json").json()["tasks"]]
    assert names == ["rmsnorm", "softmax", "swiglu"]
    assert "rmsnorm" in nightshift("kernel", "list").out
    shown = nightshift("kernel", "show", "softmax", "--json").json()
    assert shown["host"] == "softmax"
    assert {cell["target"] for cell in shown["schedules"]} == {"sm_80", "sm_90"}
    assert "exp(" in nightshift("kernel", "show", "softmax").out


def test_language_prints_the_closed_list(nightshift: Command) -> None:
    ran = nightshift("kernel", "language")
    assert ran.code == 0
    assert all(f"`{code}`" in ran.out for code in CODES)
    assert nightshift("kernel", "language", "--json").json()["reasons"] == CODES


def test_names_and_files_that_do_not_exist(lab: Lab, nightshift: Command, tmp_path: Path) -> None:
    ran = nightshift("kernel", "show", "nothing")
    assert ran.code == 2
    assert "rmsnorm, softmax, swiglu" in ran.err
    ran = nightshift("kernel", "check", "softmax", "--candidate", tmp_path / "none.py")
    assert ran.code == 2
    assert "--candidate" in ran.err
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    assert nightshift("kernel", "check", "softmax", "--candidate", tmp_path / "binary.py").code == 2


def test_a_task_that_cannot_judge_is_refused(lab: Lab, nightshift: Command) -> None:
    (lab.root / "kernels" / "softmax" / "task.py").write_text("TASK = None\n")
    ran = nightshift("kernel", "list", "--json")
    assert ran.code == 2
    assert "softmax" in ran.json()["error"]["message"]


def test_a_rejection_needs_no_second_look(lab: Lab, nightshift: Command, tmp_path: Path) -> None:
    """The gate refuses it: exit 1 and the document (a process is enough: nothing of it runs)."""
    (tmp_path / "bad.py").write_text("import os\n")
    ran = nightshift("kernel", "check", "softmax", "--candidate", tmp_path / "bad.py", "--sandbox", "process", "--json")
    assert ran.code == 1
    document = ran.json()
    assert (document["verdict"], document["level"]) == ("rejected", None)
    assert document["reasons"][0]["code"] == "forbidden-import"
    assert "does not protect" in ran.err


def test_without_an_engine_it_says_what_to_do(lab: Lab, nightshift: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    ran = nightshift("kernel", "check", "softmax", "--candidate", lab.root / "kernels" / "softmax" / "kernel.py")
    assert ran.code == 3
    assert "remedy" in ran.err


@pytest.mark.docker
@pytest.mark.slow
def test_the_shipped_kernel_is_accepted(lab: Lab, nightshift: Command, docker_engine: object) -> None:
    source = lab.root / "kernels" / "swiglu" / "kernel.py"
    ran = nightshift("kernel", "check", "swiglu", "--candidate", source, "--profile", "smoke", "--json")
    assert ran.code == 0, ran.err
    document = ran.json()
    assert (document["verdict"], document["level"]) == ("accepted", "compiled")
    assert set(document["targets"]) == {"sm_80", "sm_90"}
