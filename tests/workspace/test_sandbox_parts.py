"""The parts of the sandbox that need no engine: settings, image, streams, owners, frames, profile."""

import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
from io import BytesIO
from pathlib import Path

import pytest
from pydantic import ValidationError

from workspace import docker_engine
from workspace.errors import SurroundingsError
from workspace.process import identity
from workspace.sandbox_guest import HEADER, serve
from workspace.sandbox_image import build_tar, room_mounts
from workspace.sandbox_job import SandboxLimits
from workspace.sandbox_output import Lines, Tail
from workspace.sandbox_owner import LAB, OWNER, Owner, owner_is_dead, reap_channels
from workspace.sandbox_settings import SandboxSettings, split_mount
from workspace.sandbox_watch import over, take_back

ROOT = Path(__file__).resolve().parents[2]


def test_settings_refuse_an_unknown_key_and_name_it() -> None:
    with pytest.raises(ValidationError, match="memory_gb"):
        SandboxSettings.model_validate({"memory_gb": 3})


@pytest.mark.parametrize("mount", ["data", "/data:work", "/a:/b/../tmp", "/data:/out", "/data:/", "/tmp/"])
def test_settings_refuse_a_mount_that_is_relative_or_covers_the_sandbox(mount: str) -> None:
    with pytest.raises(ValidationError, match="ro_mounts"):
        SandboxSettings(ro_mounts=[mount])


def test_settings_pull_needs_an_image() -> None:
    with pytest.raises(ValidationError, match="image"):
        SandboxSettings(pull=True)


def test_a_mount_is_split_at_its_colon() -> None:
    assert split_mount("/data/sets:/data") == ("/data/sets", "/data")
    assert split_mount("/data/sets") == ("/data/sets", "/data/sets")


def test_limits_refuse_zero_and_name_the_field() -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        SandboxLimits(timeout_s=0)


def test_the_image_holds_nothing_but_folders_links_and_two_small_files() -> None:
    with tarfile.open(fileobj=BytesIO(build_tar())) as tar:
        entries = {entry.name: entry for entry in tar}
    assert {name for name, entry in entries.items() if entry.isfile()} == {"etc/passwd", "etc/group"}
    assert entries["sbin"].isdir(), "the engine puts its init there; a link into the read-only /usr would fail"
    assert all(not entry.linkname.startswith("/") for entry in entries.values())
    assert all(entry.uid == entry.mtime == 0 for entry in entries.values())
    assert build_tar() == build_tar()


def test_only_our_own_packages_are_rooms() -> None:
    assert room_mounts(("workspace",)) == [(str(ROOT / "workspace"), "/opt/rooms/workspace")]
    for name in ("tests", "json", "..", "docs"):
        with pytest.raises(ValueError, match="packages"):
            room_mounts((name,))


def test_a_tail_is_bounded_and_keeps_the_end() -> None:
    tail = Tail(10)
    for number in range(1000):
        tail.add(f"{number}\n".encode())
    assert tail.text() == "7\n998\n999\n"


def test_lines_are_cut_across_chunks_and_endless_ones_are_cut_off() -> None:
    lines = Lines()
    assert lines.feed(b"one\r\ntw") == ["one"]
    assert lines.feed(b"o\n\nthr") == ["two", ""]
    assert lines.last() == ["thr"]
    endless = Lines()
    (cut,) = endless.feed(b"x" * 200_000)
    assert len(cut) == 64 * 1024


def test_a_folder_is_measured_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(os.urandom(300_000))
    (tmp_path / "loop").symlink_to("/usr")
    assert over(tmp_path, 200_000)
    assert not over(tmp_path, 1_000_000)


def test_what_is_taken_back_holds_no_link_pipe_or_set_user_id(tmp_path: Path) -> None:
    out, secret = tmp_path / "out", tmp_path / "secret"
    (out / "deep").mkdir(parents=True)
    secret.write_text("mine")
    (out / "deep" / "kept").write_text("result")
    (out / "deep" / "kept").chmod(0o4755)
    (out / "model.safetensors").symlink_to(secret)
    (out / "folder").symlink_to(tmp_path)
    os.mkfifo(out / "pipe")
    take_back(out)
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*")) == ["deep", "deep/kept"]
    assert secret.read_text() == "mine"
    if os.geteuid() == 0:
        assert not (out / "deep" / "kept").stat().st_mode & 0o6000


def test_an_owner_is_dead_when_its_start_time_differs() -> None:
    mine = Owner.current("lab")
    assert not owner_is_dead(mine.labels("job"))
    head, _, _ = identity().rpartition("/")
    assert owner_is_dead({LAB: "lab", OWNER: f"{head}/1"}), "the same pid, used again"
    assert not owner_is_dead({LAB: "lab"}), "a label that says nothing proves nothing"


def test_channel_folders_of_dead_owners_go_and_ours_stay(tmp_path: Path) -> None:
    ours = tmp_path / f"{Owner.current('lab').channel_prefix()}abc"
    dead = tmp_path / "sandbox-channel-1-999999999999-abc"
    other = tmp_path / "something-else"
    for folder in (ours, dead, other):
        (folder / "channel").mkdir(parents=True)
    reap_channels(tmp_path)
    assert ours.is_dir()
    assert other.is_dir()
    assert not dead.exists()


def test_the_guest_answers_frames_until_the_host_hangs_up(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        guest = threading.Thread(target=serve, args=(lambda request: request.upper(), str(path)))
        guest.start()
        connection, _ = listener.accept()
        with connection:
            for word in (b"one", b"", b"three" * 100_000):
                connection.sendall(HEADER.pack(len(word)) + word)
                (length,) = HEADER.unpack(connection.recv(8, socket.MSG_WAITALL))
                assert connection.recv(length, socket.MSG_WAITALL) == word.upper() if length else word == b""
        guest.join(5)
    assert not guest.is_alive()


def test_the_profile_is_what_the_script_writes_and_lets_none_of_these_through() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "scripts" / "seccomp_profile.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout
    profile = json.loads((ROOT / "workspace" / "seccomp.json").read_text())
    allowed = {name for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" for name in rule["names"]}
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert not allowed & {
        "io_uring_setup", "ptrace", "process_vm_readv", "process_vm_writev", "bpf", "userfaultfd", "perf_event_open",
        "keyctl", "add_key", "request_key", "mount", "umount2", "pivot_root", "fsopen", "move_mount", "open_tree",
        "unshare", "setns", "clone3", "kexec_load", "init_module", "pidfd_getfd", "kcmp", "open_by_handle_at", "reboot",
    }  # fmt: skip


def test_no_engine_is_said_quickly_and_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SurroundingsError) as caught:
        docker_engine.connect()
    assert "no such socket" in caught.value.message
    assert "docker-setup.sh" in caught.value.remedy


@pytest.mark.timeout(20)
def test_an_engine_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute.sock"))
        mute.listen(5)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/mute.sock")
        with pytest.raises(SurroundingsError, match="no answer within 3 s"):
            docker_engine.connect()


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/bin/sh").exists(), reason="needs a shell")
def test_setup_told_not_to_prints_the_command_and_changes_nothing(tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "DOCKER_HOST": f"unix://{tmp_path}/none.sock", "DOCKER_SETUP": "no"}
    setup = subprocess.run(
        ["sh", ROOT / "scripts" / "docker-setup.sh"], env=env, capture_output=True, text=True, check=False
    )
    assert setup.returncode == 3
    assert "docker-setup.sh" in setup.stderr
