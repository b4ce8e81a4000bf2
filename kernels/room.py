"""Where candidates are interpreted: a warm sandbox that is thrown away after a violation, a fault or enough candidates.

``ProcessRoom`` is the same guest as a plain child process. It has the child's limits and system call filter, but no
container: files, memory of the machine and the network are protected by the filter and the language alone. It is for
people's own code.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from workspace.errors import SurroundingsError
from workspace.sandbox_guest import HEADER, receive
from workspace.sandbox_job import SandboxFault, SandboxGone, SandboxTimeout

if TYPE_CHECKING:
    from workspace.sandbox import Sandboxes

READY_TIMEOUT_S = 180.0
MAX_REUSES = 200
ENVIRONMENT = {
    "TRITON_INTERPRET": "1",
    "TRITON_DEFAULT_FP_FUSION": "1",
    "TRITON_CACHE_DIR": "/tmp/triton",
    "TRITON_HOME": "/tmp",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Warm(Protocol):
    """What a room needs of a warm sandbox."""

    @property
    def alive(self) -> bool: ...
    def ask(self, request: bytes, timeout_s: float, max_bytes: int) -> bytes: ...
    def strangers(self) -> list[int]: ...
    def close(self) -> None: ...


class Room:
    """One warm sandbox at a time.

    ``asked`` counts questions over all of them, ``uses`` those of the present one, ``disposals`` why earlier ones were
    thrown away.
    """

    def __init__(self, open_warm: Callable[[], Warm]) -> None:
        self._open_warm = open_warm
        self._warm: Warm | None = None
        self.uses = 0
        self.asked = 0
        self.opened = 0
        self.disposals: dict[str, int] = {}

    def open(self) -> None:
        """Start a sandbox if there is none."""
        if self._warm is None or not self._warm.alive:
            self._warm = self._open_warm()
            self.opened += 1
            self.uses = 0

    def ask(self, request: bytes, timeout_s: float, max_bytes: int) -> bytes:
        """Ask the sandbox, a fresh one if need be; SandboxFault if it failed (and is gone)."""
        self.open()
        assert self._warm is not None
        try:
            reply = self._warm.ask(request, timeout_s, max_bytes)
        except SandboxFault as fault:
            self.dispose(type(fault).__name__)
            raise
        self.uses += 1
        self.asked += 1
        return reply

    def strangers(self) -> list[int]:
        """Processes that a candidate left behind."""
        return self._warm.strangers() if self._warm is not None else []

    def worn(self) -> bool:
        """Whether it has served long enough."""
        return self.uses >= MAX_REUSES

    def dispose(self, why: str) -> None:
        """Throw the sandbox away; the next question opens another."""
        warm, self._warm = self._warm, None
        if warm is not None:
            self.disposals[why] = self.disposals.get(why, 0) + 1
            warm.close()

    def health(self) -> dict[str, Any]:
        """For the ledger: sandboxes opened, questions asked, why each was thrown away."""
        return {"opened": self.opened, "asked": self.asked, "disposals": dict(self.disposals)}

    def close(self) -> None:
        """The end."""
        self.dispose("closed")


def docker_room(sandboxes: Sandboxes) -> Room:
    """A room in a hardened container."""
    from workspace.sandbox_job import SandboxJob, SandboxLimits

    job = SandboxJob(
        argv=["python", "-m", "kernels.guest"],
        env=ENVIRONMENT,
        limits=SandboxLimits(memory_mb=3072, cpus=2, pids=32, timeout_s=READY_TIMEOUT_S, tmpfs_mb=64, file_mb=64),
        name="interpret",
        rooms=("workspace", "kernels"),
    )
    return Room(lambda: sandboxes.open(job))


def process_room() -> Room:
    """A room that is a child process of this one."""
    return Room(ProcessWarm)


class ProcessWarm:
    """``kernels.guest`` as a child process on a socket in a temporary folder."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="nightshift-guest-"))
        path = str(self._folder / "socket")
        environment = {"PATH": os.defpath, "PYTHONPATH": str(Path(__file__).parents[1]), "HOME": str(self._folder)}
        environment |= ENVIRONMENT | {
            "TRITON_CACHE_DIR": str(self._folder / "triton"),
            "TRITON_HOME": str(self._folder),
        }
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, (self._folder / "log").open("wb") as log:
            listener.bind(path)
            listener.listen(1)
            listener.settimeout(0.2)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kernels.guest", path], env=environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd=self._folder,
            )  # fmt: skip
            self._connection = self._accepted(listener)

    def _accepted(self, listener: socket.socket) -> socket.socket:
        for _ in range(int(READY_TIMEOUT_S / 0.2)):
            try:
                return listener.accept()[0]
            except TimeoutError:
                if self._process.poll() is not None:
                    break
        log = (self._folder / "log").read_text(errors="replace")[-2000:]
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        raise SurroundingsError(f"the interpreter did not start: {log}", remedy="nightshift doctor")

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    def ask(self, request: bytes, timeout_s: float, max_bytes: int) -> bytes:
        """One request and its answer."""
        self._connection.settimeout(timeout_s)
        try:
            self._connection.sendall(HEADER.pack(len(request)) + request)
            reply = receive(self._connection)
        except TimeoutError:
            raise SandboxTimeout("no answer in time", "") from None
        except (OSError, EOFError) as error:
            raise SandboxGone(f"the guest ended: {error}", "") from None
        if reply is None or len(reply) > max_bytes:
            raise SandboxGone("the guest broke off", "")
        return reply

    def strangers(self) -> list[int]:
        """Children of the guest; the guest reaps its own, so there are none to speak of."""
        return []

    def close(self) -> None:
        """End the child process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
