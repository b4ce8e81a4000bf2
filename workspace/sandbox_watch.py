"""Watching one container from outside: its deadline, its memory, the size of what it writes.

The deadline is kept on this machine's monotonic clock by a thread of its own: neither the container nor a slow reader
of its output can move it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from workspace.sandbox_job import Status

if TYPE_CHECKING:
    from docker.models.containers import Container

TICK_S = 0.1
MOST_FILES = 100_000
CGROUPS = Path("/sys/fs/cgroup")


class Watchdog:
    """Ends a container for the first reason that applies, and remembers which."""

    def __init__(
        self,
        container: Container,
        deadline: float,
        *,
        stop: threading.Event | None,
        output: Path | None,
        output_bytes: int,
    ) -> None:
        self.reason: Status | None = None
        self.peak_memory_bytes: int | None = None
        self._container = container
        self._deadline = deadline
        self._stop = stop
        self._output = output
        self._output_bytes = output_bytes
        self._done = threading.Event()
        self._flood = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sandbox-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch; the container must have been started."""
        self._thread.start()

    def flood(self) -> None:
        """Say that too much was printed."""
        self._flood.set()

    def finish(self) -> None:
        """Stop watching."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        memory = memory_file(self._container)
        next_measure = time.monotonic() + 1.0
        while not self._done.wait(TICK_S):
            if memory is not None:
                self.peak_memory_bytes = read_int(memory) or self.peak_memory_bytes
            if self.reason is not None:
                kill(self._container)  # again, should the first one have been lost
            elif time.monotonic() >= self._deadline:
                self._end("timed_out")
            elif self._stop is not None and self._stop.is_set():
                self._end("killed")
            elif self._flood.is_set():
                self._end("output_flood")
            elif self._output is not None and time.monotonic() >= next_measure:
                begun = time.monotonic()
                if over(self._output, self._output_bytes):
                    self._end("output_flood")
                # A folder that takes long to measure is measured less often.
                next_measure = time.monotonic() + max(1.0, 10 * (time.monotonic() - begun))

    def _end(self, reason: Status) -> None:
        self.reason = reason
        kill(self._container)


def kill(container: Container) -> None:
    """Kill every process of the container; nothing happens if it has ended."""
    from docker.errors import DockerException
    from requests import RequestException

    with contextlib.suppress(DockerException, RequestException):
        container.kill()


def remove(container: Container) -> None:
    """Remove the container, running or not, with its volumes."""
    from docker.errors import APIError, NotFound

    try:
        container.remove(v=True, force=True)
    except NotFound:
        return
    except APIError as error:
        if error.status_code != 409:  # 409: its removal is under way
            raise


def over(folder: Path, limit_bytes: int) -> bool:
    """Say whether a folder holds more than ``limit_bytes`` on disk, or very many files; links are not followed."""
    total = 0
    count = 0
    hidden: list[OSError] = []
    for _, _, names, handle in os.fwalk(folder, follow_symlinks=False, onerror=hidden.append):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(name, dir_fd=handle, follow_symlinks=False).st_blocks * 512
        count += len(names) + 1
        if total > limit_bytes or count > MOST_FILES:
            return True
    # A folder that may not be looked into could hold anything; one that has just been removed is no matter.
    return any(isinstance(error, PermissionError) for error in hidden)


def hand_over(folder: Path, uid: int, gid: int) -> None:
    """Make everything in a folder belong to (uid, gid), without following a link out of it. Needs root."""
    for _, folders, names, handle in os.fwalk(folder, follow_symlinks=False):
        os.fchown(handle, uid, gid)
        for name in names + folders:
            with contextlib.suppress(FileNotFoundError):
                os.chown(name, uid, gid, dir_fd=handle, follow_symlinks=False)


def take_back(folder: Path) -> None:
    """Leave only plain files and folders in what a sandbox wrote, and make them ours.

    A link there could point at any file of this machine, and whoever opens it later would read or write that one; a
    named pipe would block its reader. Changing the owner also clears set-user-id bits.
    """
    for _, folders, names, handle in os.fwalk(folder, follow_symlinks=False):
        for name in names + folders:
            with contextlib.suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                    os.unlink(name, dir_fd=handle)
    if os.geteuid() == 0:
        hand_over(folder, os.geteuid(), os.getegid())


def memory_file(container: Container) -> Path | None:
    """The file of the container's cgroup that holds its peak memory, None if it cannot be found."""
    for controller, name in (("memory", "memory.max_usage_in_bytes"), ("", "memory.peak")):
        folder = cgroup_folder(container, controller)
        if folder is not None and (folder / name).is_file():
            return folder / name
    return None


def cgroup_folder(container: Container, controller: str) -> Path | None:
    """The container's folder in a cgroup v1 hierarchy (``controller``) or in the unified one (""); None if not seen."""
    from docker.errors import DockerException

    try:
        container.reload()
        pid = int(container.attrs["State"]["Pid"])
        table = Path(f"/proc/{pid}/cgroup").read_text()
    except (OSError, KeyError, ValueError, DockerException):
        return None
    if pid <= 0:
        return None
    for line in table.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(",") or str(container.id) not in path:
            continue
        for root in (CGROUPS / controller, CGROUPS / "unified"):
            if (folder := root / path.lstrip("/")).is_dir():
                return folder
    return None


def read_int(path: Path) -> int | None:
    """The number in a file, None if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
