"""The command line as a whole: start-up, help, version, where the lab comes from, foreign packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import take_lab
from cli.rooms import ROOMS, check_rooms
from tests.conftest import Ran
from workspace.lab import Lab

HEAVY = (
    "torch",
    "triton",
    "transformers",
    "prefect",
    "matplotlib",
    "peft",
    "xgrammar",
    "reasoning_gym",
    "scipy",
    "docker",
)
ROOT = Path(__file__).resolve().parents[2]


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from cli.main import run; run(['--help']); "
        f"sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    )
    cpu_s = []
    for _ in range(3):  # processor seconds, the best of three: other work may run beside
        before = sum(os.times()[2:4])
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        cpu_s.append(sum(os.times()[2:4]) - before)
        assert "Commands:" in ran.stdout
        assert ran.stderr == ""
    assert min(cpu_s) < 0.7, cpu_s


def test_version_and_bare_command(nightshift: Callable[..., Ran]) -> None:
    assert nightshift("--version").out.startswith("nightshift 0.")
    bare = nightshift()
    assert bare.code == 2
    assert "Usage: nightshift" in bare.err
    assert bare.out == ""


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["db", "nonsense"], ["db", "check", "--nonsense"], ["model", "show"]]
)
def test_usage_errors_exit_2_on_standard_error(nightshift: Callable[..., Ran], arguments: list[str]) -> None:
    ran = nightshift(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("nightshift: ")
    assert "remedy: nightshift" in ran.err


def test_errors_are_json_with_json(nightshift: Callable[..., Ran], tmp_path: Path) -> None:
    ran = nightshift("--lab", tmp_path, "db", "check", "--json")
    error = ran.json()["error"]
    assert ran.code == error["exit"] == 2
    assert error["field"] == "--lab"
    assert error["remedy"].startswith("nightshift init")
    assert nightshift("db", "check", "--json", "--nonsense").json()["error"]["exit"] == 2


def test_where_the_lab_comes_from(
    nightshift: Callable[..., Ran], lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lab.root / "kernels")  # the nearest parent
    assert nightshift("db", "upgrade").code == 0
    monkeypatch.chdir(tmp_path)
    assert nightshift("db", "upgrade").code == 2
    assert nightshift("db", "upgrade", "--lab", lab.root).code == 0
    assert nightshift(f"--lab={lab.root}", "db", "upgrade").code == 0
    monkeypatch.setenv("NIGHTSHIFT_LAB", str(lab.root))
    assert nightshift("db", "upgrade").code == 0
    assert nightshift("db", "upgrade", "--lab", tmp_path).code == 2  # what is typed wins


def test_take_lab() -> None:
    assert take_lab(["a", "--lab", "x", "b"]) == (Path("x"), ["a", "b"])
    assert take_lab(["a", "--", "--lab", "x"]) == (None, ["a", "--", "--lab", "x"])
    assert take_lab(["a", "--lab"]) == (None, ["a", "--lab"])


def test_a_reader_that_goes_away_is_no_error(lab: Lab) -> None:
    command = f"{sys.executable} -m cli.main db check --json | head -c 1"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        cwd=lab.root,
        env=environment,
        check=False,
    )
    assert ran.stderr == ""
    assert ran.returncode == 0


def test_a_fault_of_ours_leaves_its_traceback_in_a_file(
    nightshift: Callable[..., Ran], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError("deliberate")

    monkeypatch.setattr("workspace.ledger_check.check_ledger", broken)
    ran = nightshift("db", "check")
    assert ran.code == 3
    assert "Traceback" not in ran.err
    log = next((lab.state / "logs").glob("crash-*.log"))
    assert str(log) in ran.err
    assert "ZeroDivisionError: deliberate" in log.read_text()


def test_our_rooms_are_found_and_no_rival_is_installed() -> None:
    check_rooms()


def test_transformers_does_not_take_our_kernels_for_theirs() -> None:
    from transformers.utils.import_utils import is_kernels_available

    import kernels

    assert Path(kernels.__file__ or "").parent == ROOT / "kernels"
    assert not is_kernels_available()


@pytest.mark.parametrize(("distribution", "room"), [("kernels", "kernels"), ("openai-agents", "agents")])
def test_a_rival_distribution_is_named(tmp_path: Path, distribution: str, room: str) -> None:
    """Installed as pip leaves it: a package folder and its metadata, somewhere on the path behind ours."""
    (tmp_path / room).mkdir()
    (tmp_path / room / "__init__.py").touch()
    info = tmp_path / f"{distribution.replace('-', '_')}-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 9.9\n")
    ran = _start(tmp_path, behind=True)
    assert ran.returncode == 3
    assert f"{distribution} 9.9" in ran.stderr
    assert "remedy: pip uninstall" in ran.stderr


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "cli"])
def test_a_module_that_stands_before_a_room_is_named(tmp_path: Path, room: str) -> None:
    (tmp_path / f"{room}.py").write_text("raise RuntimeError('imported')\n")
    ran = _start(tmp_path, behind=False)
    assert ran.returncode == 3
    assert repr(room) in ran.stderr
    assert str(tmp_path) in ran.stderr
    assert "Traceback" not in ran.stderr


def _start(folder: Path, *, behind: bool) -> subprocess.CompletedProcess[str]:
    """``nightshift --version`` in a process whose module path has ``folder`` behind or before our rooms."""
    path = f"[{str(ROOT)!r}, *sys.path, {str(folder)!r}]" if behind else f"[{str(folder)!r}, {str(ROOT)!r}, *sys.path]"
    code = (
        f"import sys; sys.path[:] = {path}; sys.argv = ['nightshift', '--version']; from cli.main import main; main()"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
