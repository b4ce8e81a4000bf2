"""One night at a time per lab: a file lock that the kernel gives back when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workspace.errors import SurroundingsError


@contextmanager
def exclusive(path: Path, what: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock at ``path``; SurroundingsError naming the holder's pid when somebody else does for ``wait_s``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + wait_s
        while not _taken(descriptor):
            if time.monotonic() >= deadline:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                raise SurroundingsError(
                    f"{what} is already running (pid {holder})", remedy="wait for it, or stop it with Ctrl-C"
                )
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
