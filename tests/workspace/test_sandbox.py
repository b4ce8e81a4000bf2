"""Sandboxes on a real engine: what a job cannot do, how it ends, and what is left of it (nothing)."""

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from workspace.errors import SurroundingsError
from workspace.sandbox import (
    Outcome,
    ReplyTooLarge,
    Sandboxes,
    SandboxGone,
    SandboxJob,
    SandboxLimits,
    SandboxSettings,
    SandboxTimeout,
)
from workspace.sandbox_image import ensure_image
from workspace.sandbox_owner import LAB

pytestmark = pytest.mark.docker

ROOT = Path(__file__).resolve().parents[2]
SLACK_S = 15  # between a deadline and the end: 0.3 s on a free machine, 7 s on one with six jobs a core
GUEST = Path(__file__).with_name("sandbox_guests.py")


@pytest.fixture(scope="module")
def sandboxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandboxes]:
    lab = f"test-{secrets.token_hex(6)}"
    with Sandboxes(SandboxSettings(), lab, tmp_path_factory.mktemp("scratch")) as made:
        made.check()
        yield made
        left = names(made)
    assert left == [], "containers were left behind"


def names(sandboxes: Sandboxes) -> list[str]:
    """Names of the lab's containers, as the engine itself lists them."""
    client = sandboxes._docker()
    found = client.containers.list(all=True, filters={"label": f"{LAB}={sandboxes.owner.lab}"})
    return sorted(str(container.name) for container in found)


def run(sandboxes: Sandboxes, code: str, *, limits: SandboxLimits | None = None, output: Path | None = None) -> Outcome:
    limits = limits or SandboxLimits(memory_mb=512, timeout_s=20)
    return sandboxes.run(SandboxJob(["python", "-c", code], limits=limits, output=output, name="test"))


FACTS = """
import ctypes, errno, os, socket
from pathlib import Path
status = dict(l.split(":\\t") for l in Path("/proc/self/status").read_text().splitlines() if ":\\t" in l)
print("uid", os.getuid(), os.geteuid(), os.getgid())
for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp"): print(name, status[name].strip())
def attempt(name, action):
    try: action()
    except OSError as error: print(name, "refused", errno.errorcode[error.errno])
    else: print(name, "done")
def write(path): return lambda: Path(path).write_text("x")
for path in ("/x", "/etc/x", "/usr/x", "/opt/x", "/opt/packages/x", "/opt/rooms/x", "/in/x", "/in/data", "/out/x",
             "/proc/sys/kernel/core_pattern", "/sys/fs/cgroup/x", "/tmp/x"): attempt("write:" + path, write(path))
for host in ("1.1.1.1", "169.254.169.254", "172.17.0.1"):
    attempt("connect:" + host, lambda: socket.create_connection((host, 80), timeout=3))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    def go():
        if libc.syscall(number, *args) < 0: raise OSError(ctypes.get_errno(), "")
    return go
import platform
if platform.machine() == "x86_64":
    calls = dict(ptrace=(101, 0, 0, 0, 0), process_vm_readv=(310, 1, 0, 0, 0, 0, 0), bpf=(321, 0, 0, 0),
                 userfaultfd=(323, 0), perf_event_open=(298, 0, 0, -1, -1, 0), keyctl=(250, 0, 0),
                 add_key=(248, 0, 0, 0, 0, 0),
                 io_uring_setup=(425, 1, 0), mount=(165, 0, 0, 0, 0, 0), unshare=(272, 0x10000000), setns=(308, 0, 0),
                 pidfd_getfd=(438, 0, 0, 0), clone_newuser=(56, 0x10000011, 0, 0, 0, 0), chroot=(161, b"/tmp"),
                 personality=(135, 0x0040000))
    for name, args in calls.items(): attempt("call:" + name, call(*args))
attempt("setuid", lambda: os.setuid(0))
attempt("open:/root", lambda: os.listdir("/root"))
attempt("open:/home", lambda: os.listdir("/home"))
attempt("open:/work", lambda: os.listdir("/work"))
print("devices", sorted(os.listdir("/dev")))
print("environment", sorted(os.environ.items()))
print("processes", sorted(p for p in os.listdir("/proc") if p.isdigit()))
print("limits", os.sysconf("SC_OPEN_MAX"))
"""


@pytest.fixture(scope="module")
def facts(sandboxes: Sandboxes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one sandbox says of itself: name -> rest of the line."""
    folder = tmp_path_factory.mktemp("facts")
    (folder / "data").write_text("given")
    (folder / "data").chmod(0o666)
    os.environ["NIGHTSHIFT_CANARY"] = "secret-of-the-host"
    try:
        outcome = sandboxes.run(
            SandboxJob(
                ["python", "-c", FACTS],
                inputs={"/in/data": folder / "data"},
                output=folder / "out",
                env={"GIVEN": "yes"},
                rooms=("workspace",),
                limits=SandboxLimits(memory_mb=512, timeout_s=30),
            )
        )
    finally:
        del os.environ["NIGHTSHIFT_CANARY"]
    assert outcome.status == "done", outcome
    assert (folder / "out" / "x").read_text() == "x"
    (folder / "out" / "x").write_text("writable by its owner")
    assert (folder / "out" / "x").stat().st_uid == os.geteuid()
    assert (folder / "data").read_text() == "given"
    return dict(line.split(" ", 1) for line in outcome.stdout.splitlines())


def test_it_is_unprivileged_and_filtered(facts: dict[str, str]) -> None:
    uid, effective, gid = facts["uid"].split()
    assert uid == effective == ("65534" if os.geteuid() == 0 else str(os.geteuid()))
    assert int(gid) != 0
    assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == int(facts["CapBnd"], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert facts["setuid"].startswith("refused")


def test_it_writes_nowhere_but_out_and_tmp(facts: dict[str, str]) -> None:
    writes = {name.removeprefix("write:"): result for name, result in facts.items() if name.startswith("write:")}
    assert {path for path, result in writes.items() if result == "done"} == {"/out/x", "/tmp/x"}
    assert writes["/in/data"] == "refused EROFS", "mode 0666, so only the mount protects it"


def test_it_has_no_network(facts: dict[str, str]) -> None:
    tried = {name: result for name, result in facts.items() if name.startswith("connect:")}
    assert len(tried) == 3
    assert set(tried.values()) == {"refused ENETUNREACH"}
    for family in ("vsock", "netlink", "raw"):
        assert facts[family].startswith("refused"), family


def test_dangerous_system_calls_are_refused(facts: dict[str, str]) -> None:
    calls = {name: result for name, result in facts.items() if name.startswith("call:")}
    if not calls:
        pytest.skip("the call numbers are those of x86_64")
    assert len(calls) == 15
    assert set(calls.values()) == {"refused EPERM"}


def test_it_sees_nothing_of_the_host(facts: dict[str, str]) -> None:
    for path in ("/root", "/home", "/work"):
        assert facts[f"open:{path}"] == "refused ENOENT"
    assert "secret-of-the-host" not in str(facts)
    assert "'GIVEN', 'yes'" in facts["environment"]
    assert not re.search("PROXY|TOKEN|AWS|SSH|DOCKER", facts["environment"], re.IGNORECASE)
    assert len(facts["processes"].split(",")) <= 3
    assert not set(re.findall(r"'(\w+)'", facts["devices"])) & {"kvm", "sda", "vda", "mem", "fuse", "nvidia0"}


def test_the_interpreter_brings_the_packages_and_only_the_named_rooms(sandboxes: Sandboxes) -> None:
    code = "import numpy, pydantic, workspace.sandbox_guest\nprint(sorted(__import__('os').listdir('/opt/rooms')))"
    outcome = sandboxes.run(SandboxJob(["python", "-c", code], rooms=("workspace",)))
    assert outcome.stdout == "['workspace']\n", outcome


def test_exit_code_streams_and_lines(sandboxes: Sandboxes) -> None:
    lines: list[str] = []
    code = "import sys; print('a'); print('b', file=sys.stderr); print('c', end=''); sys.exit(7)"
    outcome = sandboxes.run(SandboxJob(["python", "-c", code]), on_line=lines.append)
    assert (outcome.status, outcome.exit_code) == ("failed", 7)
    assert (outcome.stdout, outcome.stderr) == ("a\nc", "b\n")
    assert lines == ["a", "c"]


def test_a_missing_program_fails_with_its_name(sandboxes: Sandboxes) -> None:
    outcome = sandboxes.run(SandboxJob(["/no-such-program"]))
    assert (outcome.status, outcome.exit_code) == ("failed", 127)
    assert "no-such-program" in outcome.stderr


def test_what_the_engine_refuses_is_an_error_of_ours(sandboxes: Sandboxes) -> None:
    with pytest.raises(SurroundingsError, match="refused"):
        sandboxes.run(SandboxJob(["python"], env={"BAD\0NAME": "x"}, limits=SandboxLimits(memory_mb=1)))
    assert names(sandboxes) == []


@pytest.mark.parametrize("ignore", [False, True])
def test_an_endless_loop_ends_at_its_deadline(sandboxes: Sandboxes, ignore: bool) -> None:
    code = "import signal\nfor s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: pass\n"
    outcome = run(
        sandboxes, (code if ignore else "") + "while True: pass", limits=SandboxLimits(memory_mb=256, timeout_s=2)
    )
    assert outcome.status == "timed_out"
    assert outcome.wall_s < 2 + SLACK_S
    assert names(sandboxes) == []


def test_closing_its_streams_does_not_hide_a_job_from_its_deadline(sandboxes: Sandboxes) -> None:
    outcome = run(
        sandboxes, "import os, time; os.close(1); os.close(2); time.sleep(60)", limits=SandboxLimits(timeout_s=2)
    )
    assert outcome.status == "timed_out"
    assert outcome.wall_s < 2 + SLACK_S


def test_it_can_be_stopped(sandboxes: Sandboxes) -> None:
    stop = threading.Event()
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        stop.set()

    code = "import time; print('started'); time.sleep(60)"
    outcome = sandboxes.run(SandboxJob(["python", "-c", code]), on_line, stop)
    assert (outcome.status, lines) == ("killed", ["started"])
    assert outcome.wall_s < 2 + SLACK_S


def test_an_interrupt_removes_the_container(sandboxes: Sandboxes) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sandboxes.run(SandboxJob(["python", "-c", "while True: print('x' * 100)"]), interrupt)
    assert names(sandboxes) == []


def test_a_fork_bomb_ends(sandboxes: Sandboxes) -> None:
    code = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    outcome = run(sandboxes, code, limits=SandboxLimits(memory_mb=512, pids=32, timeout_s=2))
    assert outcome.status in ("timed_out", "out_of_memory")
    assert outcome.wall_s < 2 + SLACK_S


def test_a_huge_allocation_fails_inside(sandboxes: Sandboxes) -> None:
    outcome = run(sandboxes, "x = bytearray(256 << 30)")
    assert outcome.status == "out_of_memory" or (outcome.status == "failed" and "MemoryError" in outcome.stderr)


def test_using_too_much_memory_is_told_apart_from_failing(sandboxes: Sandboxes) -> None:
    code = "x = []\nwhile True: x.append(b'x' * (1 << 20))"
    outcome = run(sandboxes, code, limits=SandboxLimits(memory_mb=128, timeout_s=20))
    assert outcome.status == "out_of_memory"
    assert run(sandboxes, "raise SystemExit(137)").status == "failed"


def test_a_flood_of_output_is_cut_and_costs_us_no_memory(sandboxes: Sandboxes) -> None:
    began = not tracemalloc.is_tracing()
    tracemalloc.start()
    tracemalloc.reset_peak()
    before_bytes, _ = tracemalloc.get_traced_memory()
    try:
        outcome = run(
            sandboxes,
            "import sys\nfor _ in range(1024): sys.stdout.write('x' * (1 << 20))",
            limits=SandboxLimits(memory_mb=256, timeout_s=20, output_kb=256),
        )
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        if began:
            tracemalloc.stop()
    assert outcome.status == "output_flood"
    assert len(outcome.stdout) <= 256 * 1024
    assert peak_bytes - before_bytes < 16 << 20


def test_a_file_and_the_scratch_space_are_bounded(sandboxes: Sandboxes, tmp_path: Path) -> None:
    code = """
import errno
def fill(path):
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < 1 << 30: written += file.write(bytes(1 << 20))
    except OSError as error: print(path, errno.errorcode[error.errno], written >> 20)
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
fill("/out/big"); fill("/tmp/big"); fill("/dev/shm/big")
"""
    limits = SandboxLimits(memory_mb=512, timeout_s=20, file_mb=32, tmpfs_mb=16)
    outcome = run(sandboxes, code, limits=limits, output=tmp_path / "out")
    lines = outcome.stdout.split("\n")
    assert lines[:2] == ["/out/big EFBIG 32", "/tmp/big ENOSPC 16"], outcome
    assert (tmp_path / "out" / "big").stat().st_size == 32 << 20


def test_filling_the_disk_with_many_files_is_noticed(sandboxes: Sandboxes, tmp_path: Path) -> None:
    code = """
import time
for number in range(64):
    open(f"/out/{number}", "wb").write(b"x" * (1 << 20))
time.sleep(30)
"""
    limits = SandboxLimits(memory_mb=512, timeout_s=20, out_mb=32)
    outcome = run(sandboxes, code, limits=limits, output=tmp_path / "out")
    assert outcome.status == "output_flood"
    assert outcome.wall_s < 2 + SLACK_S


def test_links_in_the_output_do_not_lead_out_of_it(sandboxes: Sandboxes, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    code = f"import os; os.symlink({str(secret)!r}, '/out/link'); os.mkdir('/out/d'); os.symlink('/', '/out/d/root')"
    assert run(sandboxes, code, output=tmp_path / "out").status == "done"
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["d"]
    assert secret.stat().st_uid == os.geteuid()


def guest(timeout_s: float = 20) -> SandboxJob:
    limits = SandboxLimits(memory_mb=256, timeout_s=timeout_s)
    return SandboxJob(["python", "/in/guest.py"], inputs={"/in/guest.py": GUEST}, limits=limits, name="guest")


def test_a_warm_sandbox_answers_and_knows_its_processes(sandboxes: Sandboxes) -> None:
    with sandboxes.open(guest()) as warm:
        assert [warm.ask(word, 5, 100) for word in (b"abc", b"", b"xyz")] == [b"cba", b"", b"zyx"]
        assert warm.strangers() == []
        assert os.getpid() not in warm.processes()
        warm.ask(b"fork 3", 5, 100)
        assert len(warm.strangers()) == 1
        deadline = time.monotonic() + 3 + SLACK_S
        while warm.strangers() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert warm.strangers() == [], "init collects what is orphaned"
        large = os.urandom(3 << 20)
        assert warm.ask(large, 30, 4 << 20) == large[::-1]
        assert "ready" in warm.log()
        folder = warm.channel
    assert not warm.alive
    assert warm.processes() == []
    assert not folder.parent.exists()
    with pytest.raises(SandboxGone, match="thrown away"):
        warm.ask(b"abc", 5, 100)


def test_a_warm_sandbox_is_thrown_away_after_any_fault(sandboxes: Sandboxes) -> None:
    for request, fault, message in (
        (b"sleep 30", SandboxTimeout, "within 1 s"),
        (b"big 101", ReplyTooLarge, "101 bytes"),
        (b"exit 3", SandboxGone, "ended"),
        (b"raise surprise", SandboxGone, "ValueError: surprise"),
    ):
        with sandboxes.open(guest()) as warm:
            begun = time.monotonic()
            with pytest.raises(fault, match=message):
                warm.ask(request, 1, 100)
            assert time.monotonic() - begun < 1 + SLACK_S
            assert not warm.alive
            assert names(sandboxes) == []
    assert list(sandboxes.scratch.iterdir()) == []


def test_a_guest_that_never_becomes_ready_is_given_up(sandboxes: Sandboxes) -> None:
    limits = SandboxLimits(memory_mb=256, timeout_s=1.5)
    with pytest.raises(SandboxTimeout, match="not ready"):
        sandboxes.open(SandboxJob(["python", "-c", "import time; time.sleep(60)"], limits=limits))
    with pytest.raises(SandboxGone, match="SyntaxError"):
        sandboxes.open(SandboxJob(["python", "-c", "1 +"], limits=SandboxLimits(timeout_s=10)))
    assert names(sandboxes) == []
    assert list(sandboxes.scratch.iterdir()) == []


def test_closing_the_sandboxes_closes_a_forgotten_warm_one(sandboxes: Sandboxes, tmp_path: Path) -> None:
    with Sandboxes(sandboxes.settings, sandboxes.owner.lab, tmp_path) as others:
        warm = others.open(guest())
        assert len(names(sandboxes)) == 1
    assert not warm.alive
    assert names(sandboxes) == []


OWNER = """
import sys
from pathlib import Path
from workspace.sandbox import *
sandboxes = Sandboxes(SandboxSettings(), sys.argv[1], Path(sys.argv[2]))
job = SandboxJob(["python", "/in/guest.py"], inputs={"/in/guest.py": Path(sys.argv[3])})
warm = sandboxes.open(job)
sleeper = SandboxJob(["python", "-c", "import time; print('up'); time.sleep(600)"])
sandboxes.run(sleeper, lambda line: print(line, flush=True))
"""


def test_what_a_killed_owner_left_is_reaped_and_a_living_one_keeps_his(sandboxes: Sandboxes, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, sandboxes.owner.lab, str(sandboxes.scratch), str(GUEST)]
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as victim,
        sandboxes.open(guest()) as living,
    ):
        assert victim.stdout is not None
        assert victim.stdout.readline() == "up\n"
        assert len(names(sandboxes)) == 3
        assert sandboxes.reap() == [], "its owner lives"
        victim.send_signal(signal.SIGKILL)
        victim.wait(10)
        mine = living._container
        assert mine is not None
        left = [name for name in names(sandboxes) if name != mine.name]
        assert len(left) == 2
        assert sorted(sandboxes.reap()) == left
        assert names(sandboxes) == [mine.name]
        assert living.ask(b"abc", 5, 100) == b"cba"
        assert len(list(sandboxes.scratch.iterdir())) == 1


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs the system's Python")
def test_an_image_of_ones_own_gets_nothing_of_the_host_but_what_is_named(sandboxes: Sandboxes) -> None:
    image = ensure_image(sandboxes._docker(), SandboxSettings())
    bare = SandboxSettings(image=image)
    with Sandboxes(bare, sandboxes.owner.lab) as own:
        assert own.run(SandboxJob(["/usr/bin/python3", "-c", "print(1)"])).exit_code == 127
    named = SandboxSettings(image=image, ro_mounts=["/usr"])
    with Sandboxes(named, sandboxes.owner.lab) as own:
        code = "import os; print(sorted(os.listdir('/opt')))"
        assert own.run(SandboxJob(["/usr/bin/python3", "-c", code])).stdout == "[]\n"
    with (
        Sandboxes(SandboxSettings(image="nightshift-no-such-image"), sandboxes.owner.lab) as own,
        pytest.raises(SurroundingsError, match="not on this machine"),
    ):
        own.run(SandboxJob(["python"]))
