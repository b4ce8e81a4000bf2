"""A warm sandbox: a container that has done its slow imports and answers framed requests until it is thrown away.

The host listens on a Unix socket in a folder of its own, mounted read-only at /channel; the guest
(``workspace.sandbox_guest``) connects to it once, and the socket's name is removed then. After any fault the container
is removed at once: nothing is asked of it again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from workspace.docker_engine import engine_errors
from workspace.sandbox_guest import HEADER
from workspace.sandbox_job import ReplyTooLarge, SandboxFault, SandboxGone, SandboxJob, SandboxTimeout
from workspace.sandbox_watch import cgroup_folder, remove

if TYPE_CHECKING:
    from docker.models.containers import Container

SOCKET = "socket"
CHUNK_BYTES = 1024 * 1024
LOG_LINES = 40
LAST_WORDS_S = 3.0
ACCEPT_TICK_S = 0.1


class WarmSandbox:
    """Made by ``Sandboxes.open``. One request at a time; threads take turns."""

    def __init__(self, folder: Path, job: SandboxJob, on_close: Callable[[], None]) -> None:
        self.job = job
        self.channel = folder / "channel"
        self._folder = folder
        self._on_close = on_close
        self._container: Container | None = None
        self._connection: socket.socket | None = None
        self._cgroup: Path | None = None
        self._own: frozenset[int] = frozenset()
        self._lock = threading.RLock()
        # The outer folder is 0700: nobody else of this machine comes near the socket. The inner one is for the guest.
        self.channel.mkdir()
        self.channel.chmod(0o755)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _bind(self._listener, self.channel)
        self._listener.listen(1)

    @property
    def alive(self) -> bool:
        """Whether it can still be asked; False for good after a fault or ``close``."""
        return self._connection is not None

    def begin(self, container: Container) -> None:
        """Start the container and wait for its guest (called once, by ``Sandboxes.open``)."""
        self._container = container
        container.start()
        deadline = time.monotonic() + self.job.limits.timeout_s
        self._listener.settimeout(ACCEPT_TICK_S)
        while True:
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
                break
            container.reload()
            if container.status not in ("created", "running"):
                code = container.attrs["State"]["ExitCode"]
                self._fail(SandboxGone, f"the guest ended with code {code} before it was ready")
            if time.monotonic() >= deadline:
                self._fail(SandboxTimeout, f"the guest was not ready within {self.job.limits.timeout_s:g} s")
        self._connection = connection
        self._listener.close()
        (self.channel / SOCKET).unlink()
        self._cgroup = cgroup_folder(container, "pids") or cgroup_folder(container, "")
        self._own = frozenset(self.processes())

    def ask(self, request: bytes, timeout_s: float, max_bytes: int) -> bytes:
        """Send a request and return the answer.

        Raises SandboxTimeout, SandboxGone or ReplyTooLarge (more than ``max_bytes``); the sandbox is gone then.
        """
        with self._lock:
            connection = self._connection
            if connection is None:
                raise SandboxGone("this sandbox has been thrown away")
            deadline = time.monotonic() + timeout_s
            try:
                _send(connection, HEADER.pack(len(request)), deadline)
                _send(connection, request, deadline)
                (length,) = HEADER.unpack(_receive(connection, HEADER.size, deadline))
                if length > max_bytes:
                    self._fail(ReplyTooLarge, f"an answer of {length} bytes where {max_bytes} are allowed")
                return _receive(connection, length, deadline)
            except TimeoutError:
                self._fail(SandboxTimeout, f"no complete answer within {timeout_s:g} s")
            except (OSError, EOFError) as error:
                self._fail(SandboxGone, f"the guest ended: {error}")
            except BaseException:
                self.close()  # half a conversation cannot be continued
                raise

    def processes(self) -> list[int]:
        """Process ids, as the host sees them, of everything in the container; empty when it is gone."""
        with self._lock:
            if self._container is None:
                return []
            if self._cgroup is not None:
                with contextlib.suppress(OSError):
                    return sorted({int(pid) for pid in (self._cgroup / "cgroup.procs").read_text().split()})
            return _top(self._container)

    def strangers(self) -> list[int]:
        """Processes that were not there when the guest became ready: after a request there must be none."""
        return [pid for pid in self.processes() if pid not in self._own]

    def log(self) -> str:
        """The last lines that the guest printed, both streams."""
        from docker.errors import DockerException
        from requests import RequestException

        with contextlib.suppress(DockerException, RequestException):
            if self._container is not None:
                return bytes(self._container.logs(tail=LOG_LINES)).decode("utf-8", "replace")[-16384:]
        return ""

    def close(self) -> None:
        """Throw the sandbox away; may be called again."""
        with self._lock:
            container, self._container = self._container, None
            connection, self._connection = self._connection, None
            try:
                if connection is not None:
                    connection.close()
                self._listener.close()
                if container is not None:
                    with engine_errors():
                        remove(container)
            finally:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await_end(self) -> None:
        """A guest that hung up may still be printing its last words."""
        from docker.errors import DockerException
        from requests import RequestException

        with contextlib.suppress(DockerException, RequestException):
            if self._container is not None:
                self._container.wait(timeout=LAST_WORDS_S)

    def _fail(self, fault: type[SandboxFault], message: str) -> NoReturn:
        if fault is SandboxGone:
            self._await_end()
        log = self.log()
        self.close()
        raise fault(f"sandbox {self.job.name!r}: {message}", log)


def _bind(listener: socket.socket, folder: Path) -> None:
    # A socket's path may have 107 bytes only, a lab's may be longer: go through the folder's descriptor.
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{handle}/{SOCKET}")
    finally:
        os.close(handle)
    (folder / SOCKET).chmod(0o666)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _send(connection: socket.socket, data: bytes, deadline: float) -> None:
    view = memoryview(data)
    while view:
        connection.settimeout(_left(deadline))
        view = view[connection.send(view[:CHUNK_BYTES]) :]


def _receive(connection: socket.socket, count: int, deadline: float) -> bytes:
    # Grows as bytes arrive: an announced length costs nothing.
    data = bytearray()
    while len(data) < count:
        connection.settimeout(_left(deadline))
        chunk = connection.recv(min(CHUNK_BYTES, count - len(data)))
        if not chunk:
            raise EOFError("it hung up")
        data += chunk
    return bytes(data)


def _top(container: Container) -> list[int]:
    from docker.errors import DockerException

    try:
        table = container.top(ps_args="-eo pid")
    except DockerException:
        return []
    column = table["Titles"].index("PID")
    return sorted(int(row[column]) for row in table["Processes"] or [])
